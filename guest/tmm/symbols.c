// SPDX-License-Identifier: GPL-2.0-only
/*
 * Find the kernel functions that are not exported, and aim static calls at them.
 *
 * A kprobe on kallsyms_lookup_name() gives its address (the kprobe may have
 * moved past an ENDBR, hence the address is only ever called, never compared);
 * it finds the rest.
 */
#include <linux/kprobes.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/tracepoint.h>
#include <linux/utsname.h>

#include "../compat/known_kernels.h"
#include "kernel_calls.h"
#include "symbols.h"

static char *kernels = DEMETER_KNOWN_KERNELS;
module_param(kernels, charp, 0444);
MODULE_PARM_DESC(kernels, "Kernel series known to work, default " DEMETER_KNOWN_KERNELS);

DEMETER_DEFINE_CALL(kallsyms_lookup_name);
DEMETER_DEFINE_CALL(folio_isolate_lru);
DEMETER_DEFINE_CALL(folio_putback_lru);
DEMETER_DEFINE_CALL(try_to_migrate);
DEMETER_DEFINE_CALL(remove_migration_ptes);
DEMETER_DEFINE_CALL(try_to_unmap_flush);
DEMETER_DEFINE_CALL(folio_get_anon_vma);
DEMETER_DEFINE_CALL(__put_anon_vma);
DEMETER_DEFINE_CALL(lru_add_drain);
DEMETER_DEFINE_CALL(walk_page_range);
DEMETER_DEFINE_CALL(migrate_pages);
DEMETER_DEFINE_CALL(putback_movable_pages);
#if !DEMETER_COMPAT_MAPCOUNT_INLINE
DEMETER_DEFINE_CALL(folio_mapcount);
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
	typeof(kallsyms_lookup_name) *lookup;
	int ret;

	ret = register_kprobe(&probe);
	if (ret) {
		pr_err("demeter: cannot place a kprobe on kallsyms_lookup_name (error %d); next: use a kernel with CONFIG_KPROBES and CONFIG_KALLSYMS\n",
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

bool demeter_symbol_aim(struct static_call_key *key, void *trampoline, const char *name)
{
	unsigned long address = demeter_symbol_address(name);

	if (address)
		__static_call_update(key, trampoline, (void *)address);
	return address;
}

struct tracepoint_search {
	const char *name;
	struct tracepoint *found;
};

static void compare_tracepoint(struct tracepoint *tp, void *data)
{
	struct tracepoint_search *search = data;

	if (!strcmp(tp->name, search->name))
		search->found = tp;
}

struct tracepoint *demeter_tracepoint_find(const char *name)
{
	struct tracepoint_search search = { .name = name };

	for_each_kernel_tracepoint(compare_tracepoint, &search);
	return search.found;
}

int demeter_symbols_resolve(void)
{
	int missing = 0;
	size_t i;
	int ret;

	if (!demeter_kernel_is_known(kernels, init_utsname()->release)) {
		pr_err("demeter: Linux %s is not known to work (%s are); next: boot one that is, or, to try it on a machine that may crash, load the module with kernels=RELEASE, its whole name\n",
		       init_utsname()->release, kernels);
		return -EOPNOTSUPP;
	}
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

		if (!demeter_symbol_aim(symbol->key, symbol->trampoline, symbol->name)) {
			pr_err("demeter: this kernel has no function %s; next: boot a supported kernel (Debian 6.1, 6.12 or 7.x) or report the version\n",
			       symbol->name);
			missing++;
		}
	}
	return missing ? -ENOENT : 0;
}
