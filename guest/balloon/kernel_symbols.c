// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kernel functions that are not exported to modules, where they can be had.
 *
 * The driver works without any of them: it then allocates what it could have
 * taken free, leaves the watermarks as they are, and reports no pressure.
 *
 * A kprobe on kallsyms_lookup_name() gives its address, and it finds the rest.
 * All are called through static calls, which are direct calls: an indirect call
 * of a function whose ENDBR was sealed at boot would fault on a CPU with IBT.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/psi.h>
#include <linux/seq_file.h>
#include <linux/static_call.h>
#include <linux/utsname.h>

#include "../compat/known_kernels.h"
#include "balloon.h"
#include "kernel_symbols.h"

DEFINE_STATIC_CALL_NULL(demeter_balloon_sc_kallsyms_lookup_name,
			demeter_balloon_type_kallsyms_lookup_name);
DEFINE_STATIC_CALL_NULL(demeter_balloon_sc_isolate_free_page,
			demeter_balloon_type_isolate_free_page);
DEFINE_STATIC_CALL_NULL(demeter_balloon_sc_setup_per_zone_wmarks,
			demeter_balloon_type_setup_per_zone_wmarks);
DEFINE_STATIC_CALL_NULL(demeter_balloon_sc_psi_show, demeter_balloon_type_psi_show);

static char *kernels = DEMETER_KNOWN_KERNELS;
module_param(kernels, charp, 0444);
MODULE_PARM_DESC(kernels, "Kernel series known to work, default " DEMETER_KNOWN_KERNELS);

static bool have_isolate_free_page;
static bool have_setup_per_zone_wmarks;
static struct psi_group *psi_system_group; /* set if psi_show() was found too */

static bool find_lookup(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	typeof(demeter_balloon_type_kallsyms_lookup_name) *lookup;

	if (register_kprobe(&probe))
		return false;
	lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	static_call_update(demeter_balloon_sc_kallsyms_lookup_name, lookup);
	/* A lookup that does not find itself was aimed wrong: do not trust it. */
	return static_call(demeter_balloon_sc_kallsyms_lookup_name)("kallsyms_lookup_name");
}

static void *find(const char *name)
{
	return (void *)static_call(demeter_balloon_sc_kallsyms_lookup_name)(name);
}

void demeter_kernel_symbols_find(void)
{
	struct static_key *page_owner;
	void *function;

	if (!demeter_kernel_is_known(kernels, init_utsname()->release)) {
		pr_warn("Linux %s is not among %s: pages are zeroed to inflate, no pressure is reported; next: boot a known one, or, to try it on a machine that may crash, load the module with kernels=RELEASE, its whole name\n",
			init_utsname()->release, kernels);
		return;
	}
	if (!find_lookup()) {
		pr_notice("no kallsyms: pages are zeroed to inflate, no pressure is reported\n");
		return;
	}
	/* With page owner every page off the free lists needs an owner. */
	page_owner = find("page_owner_inited");
	function = find("__isolate_free_page");
	if (function && !(page_owner && static_key_enabled(page_owner))) {
		static_call_update(demeter_balloon_sc_isolate_free_page,
				   (typeof(demeter_balloon_type_isolate_free_page) *)function);
		have_isolate_free_page = true;
	}
	function = find("setup_per_zone_wmarks");
	if (function) {
		static_call_update(demeter_balloon_sc_setup_per_zone_wmarks,
				   (typeof(demeter_balloon_type_setup_per_zone_wmarks) *)function);
		have_setup_per_zone_wmarks = true;
	}
	function = find("psi_show");
	if (function) {
		static_call_update(demeter_balloon_sc_psi_show,
				   (typeof(demeter_balloon_type_psi_show) *)function);
		psi_system_group = find("psi_system");
	}
}

/**
 * demeter_can_isolate_free_page() - may demeter_isolate_free_page() be called?
 *
 * Not if a debugging option unmaps free pages: those would have to be mapped
 * again, which only allocation does.
 */
bool demeter_can_isolate_free_page(void)
{
	return have_isolate_free_page && !debug_pagealloc_enabled();
}

/**
 * demeter_isolate_free_page() - take a free page off its free list
 * @page: head of it, in the buddy allocator at @order
 * @order: its order
 *
 * It is not prepared for use in any way, and in particular not zeroed. The
 * caller holds the zone's lock.
 *
 * Return: pages taken, or 0 if the zone is at its minimum.
 */
int demeter_isolate_free_page(struct page *page, unsigned int order)
{
	return static_call(demeter_balloon_sc_isolate_free_page)(page, order);
}

/* Zones share out min_free_kbytes by size, so it is done anew when a size changes. */
void demeter_refresh_watermarks(void)
{
	if (have_setup_per_zone_wmarks)
		static_call(demeter_balloon_sc_setup_per_zone_wmarks)();
}

/**
 * demeter_psi_text() - what /proc/pressure/memory shows
 * @text: where to
 * @size_bytes: room there, for the closing zero as well
 *
 * Return: false if there is no such information.
 */
bool demeter_psi_text(char *text, size_t size_bytes)
{
	struct seq_file seq = { .buf = text, .size = size_bytes - 1 };

	if (!psi_system_group ||
	    static_call(demeter_balloon_sc_psi_show)(&seq, psi_system_group, PSI_MEM) ||
	    seq_has_overflowed(&seq))
		return false;
	text[seq.count] = '\0';
	return true;
}
