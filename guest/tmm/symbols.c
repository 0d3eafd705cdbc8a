// SPDX-License-Identifier: GPL-2.0-only
/*
 * Find the kernel functions that are not exported, and aim static calls at them.
 *
 * A kprobe on kallsyms_lookup_name() gives its address (the kprobe may have
 * moved past an ENDBR, hence the address is only ever called, never compared);
 * it finds the rest.
 */
#include <linux/kprobes.h>
#include <linux/printk.h>

#include "kernel_calls.h"
#include "symbols.h"

unsigned long demeter_proto_kallsyms_lookup_name(const char *name);

DEFINE_STATIC_CALL_NULL(demeter_sc_kallsyms_lookup_name, demeter_proto_kallsyms_lookup_name);
DEFINE_STATIC_CALL_NULL(demeter_sc_folio_isolate_lru, demeter_proto_folio_isolate_lru);
DEFINE_STATIC_CALL_NULL(demeter_sc_folio_putback_lru, demeter_proto_folio_putback_lru);
DEFINE_STATIC_CALL_NULL(demeter_sc_try_to_migrate, demeter_proto_try_to_migrate);
DEFINE_STATIC_CALL_NULL(demeter_sc_remove_migration_ptes, demeter_proto_remove_migration_ptes);
DEFINE_STATIC_CALL_NULL(demeter_sc_try_to_unmap_flush, demeter_proto_try_to_unmap_flush);
DEFINE_STATIC_CALL_NULL(demeter_sc_folio_get_anon_vma, demeter_proto_folio_get_anon_vma);
DEFINE_STATIC_CALL_NULL(demeter_sc___put_anon_vma, demeter_proto___put_anon_vma);
DEFINE_STATIC_CALL_NULL(demeter_sc_lru_add_drain, demeter_proto_lru_add_drain);
DEFINE_STATIC_CALL_NULL(demeter_sc_walk_page_range, demeter_proto_walk_page_range);
DEFINE_STATIC_CALL_NULL(demeter_sc_migrate_pages, demeter_proto_migrate_pages);
DEFINE_STATIC_CALL_NULL(demeter_sc_putback_movable_pages, demeter_proto_putback_movable_pages);
#if !DEMETER_COMPAT_MAPCOUNT_INLINE
DEFINE_STATIC_CALL_NULL(demeter_sc_folio_mapcount, demeter_proto_folio_mapcount);
#endif

struct demeter_symbol {
	const char *name;
	struct static_call_key *key;
	void *trampoline;
};

#define DEMETER_SYMBOL(symbol)                                                                     \
	{                                                                                          \
		.name = #symbol, .key = &STATIC_CALL_KEY(demeter_sc_##symbol),                     \
		.trampoline = STATIC_CALL_TRAMP_ADDR(demeter_sc_##symbol),                         \
	}

static const struct demeter_symbol demeter_symbols[] = {
	DEMETER_SYMBOL(folio_isolate_lru),     DEMETER_SYMBOL(folio_putback_lru),
	DEMETER_SYMBOL(try_to_migrate),	       DEMETER_SYMBOL(remove_migration_ptes),
	DEMETER_SYMBOL(try_to_unmap_flush),    DEMETER_SYMBOL(folio_get_anon_vma),
	DEMETER_SYMBOL(__put_anon_vma),	       DEMETER_SYMBOL(lru_add_drain),
	DEMETER_SYMBOL(walk_page_range),       DEMETER_SYMBOL(migrate_pages),
	DEMETER_SYMBOL(putback_movable_pages),
#if !DEMETER_COMPAT_MAPCOUNT_INLINE
	DEMETER_SYMBOL(folio_mapcount),
#endif
};

static bool demeter_lookup_ready;

static int demeter_find_lookup(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	typeof(demeter_proto_kallsyms_lookup_name) *lookup;
	int ret;

	ret = register_kprobe(&probe);
	if (ret) {
		pr_err("demeter: cannot place a kprobe on kallsyms_lookup_name (error %d); next: use a kernel with CONFIG_KPROBES and CONFIG_KALLSYMS, and switch kernel lockdown off\n",
		       ret);
		return ret;
	}
	lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	static_call_update(demeter_sc_kallsyms_lookup_name, lookup);
	demeter_lookup_ready = true;
	return 0;
}

unsigned long demeter_symbol_address(const char *name)
{
	if (!demeter_lookup_ready)
		return 0;
	return static_call(demeter_sc_kallsyms_lookup_name)(name);
}

int demeter_symbols_resolve(void)
{
	unsigned long address;
	int missing = 0;
	size_t i;
	int ret;

	ret = demeter_find_lookup();
	if (ret)
		return ret;

	/* A lookup that does not find itself was aimed wrong: do not trust it. */
	if (!demeter_symbol_address("kallsyms_lookup_name")) {
		pr_err("demeter: kallsyms_lookup_name does not know itself; next: report this kernel's version and configuration\n");
		return -EOPNOTSUPP;
	}

	for (i = 0; i < ARRAY_SIZE(demeter_symbols); i++) {
		const struct demeter_symbol *symbol = &demeter_symbols[i];

		address = demeter_symbol_address(symbol->name);
		if (!address) {
			pr_err("demeter: this kernel has no function %s; next: boot a supported kernel (Debian 6.1, 6.12 or 7.x) or report the version\n",
			       symbol->name);
			missing++;
			continue;
		}
		__static_call_update(symbol->key, symbol->trampoline, (void *)address);
	}
	return missing ? -ENOENT : 0;
}
