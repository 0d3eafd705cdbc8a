// SPDX-License-Identifier: GPL-2.0-only
/*
 * Model report: totals for the testbed's machine model, docs/spec/model-bar.md, if
 * there is one. On any other machine there is not, and nothing is said.
 *
 * The model shares ID and class with every other ivshmem device. Of a stranger
 * only the first eight bytes are read, and only if its memory is switched on
 * already; nothing is written and no state of the device changed.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/io.h>
#include <linux/pci.h>
#include <demeter_model.h>

#include "tmm.h"

#define IVSHMEM_VENDOR 0x1af4
#define IVSHMEM_DEVICE 0x1110
#define IVSHMEM_BAR    2
#define MAPPED_BYTES   (DEMETER_MODEL_GUEST_OFFSET + sizeof(struct demeter_model_guest))

/**
 * struct model - the model that is told
 * @pdev: device; holds a reference and has its memory enabled
 * @bar: head of BAR 2, MAPPED_BYTES
 *
 * Set up and torn down under demeter_control_lock while no worker runs.
 */
static struct model {
	struct pci_dev *pdev;
	void *bar;
} model;

static bool memory_is_on(struct pci_dev *pdev)
{
	u16 command;

	return !pci_read_config_word(pdev, PCI_COMMAND, &command) && command & PCI_COMMAND_MEMORY;
}

/* Map the BAR of @pdev if it is a model's. */
static void *map_model(struct pci_dev *pdev)
{
	struct demeter_model_header *header;

	if (pdev->dev.driver || pci_resource_len(pdev, IVSHMEM_BAR) < MAPPED_BYTES ||
	    !memory_is_on(pdev))
		return NULL;
	header = memremap(pci_resource_start(pdev, IVSHMEM_BAR), MAPPED_BYTES, MEMREMAP_WB);
	if (header && READ_ONCE(header->magic) != DEMETER_MODEL_MAGIC) {
		memunmap(header);
		return NULL;
	}
	return header;
}

/* A model it is; may it be used? */
static int take(struct pci_dev *pdev, const struct demeter_model_header *header)
{
	u32 version = READ_ONCE(header->version);
	int ret;

	if (version != DEMETER_MODEL_VERSION) {
		pr_warn("the testbed's model %s speaks version %u and this module %u, so it is told nothing; next: use a testbed and a module of the same version\n",
			pci_name(pdev), version, DEMETER_MODEL_VERSION);
		return -EPROTO;
	}
	ret = pci_enable_device_mem(pdev);
	if (ret)
		return ret;
	ret = pci_request_region(pdev, IVSHMEM_BAR, "demeter");
	if (ret) {
		pr_warn("the testbed's model %s is in use by another driver, so it is told nothing; next: unload that one\n",
			pci_name(pdev));
		pci_disable_device(pdev);
	}
	return ret;
}

/**
 * demeter_model_report_start() - find the model
 */
void demeter_model_report_start(void)
{
	struct pci_dev *pdev = NULL;
	void *bar;

	while ((pdev = pci_get_device(IVSHMEM_VENDOR, IVSHMEM_DEVICE, pdev))) {
		bar = map_model(pdev);
		if (!bar)
			continue;
		if (!take(pdev, bar)) {
			model = (struct model){ .pdev = pdev, .bar = bar };
			return;
		}
		memunmap(bar);
	}
}

/**
 * demeter_model_report() - tell the model the totals
 *
 * For the worker, once a tick.
 */
void demeter_model_report(void)
{
	struct demeter_model_guest totals = {
		.epochs = demeter_stats.epochs,
		.promoted_pages = demeter_stats.promoted_pages,
		.demoted_pages = demeter_stats.demoted_pages,
		.refused_pages = demeter_stats_refused_pages(),
		.samples = demeter_stats.samples,
		.lost_samples = demeter_stats.lost_samples,
		.ranges = demeter_stats.ranges,
		.splits = demeter_stats.splits,
		.merges = demeter_stats.merges,
	};
	int i;

	if (!model.bar)
		return;
	for (i = 0; i < DEMETER_STAGES; i++)
		totals.stage_ns[i] = demeter_stats_stage_ns(i);
	memcpy(model.bar + DEMETER_MODEL_GUEST_OFFSET, &totals, sizeof(totals));
}

/**
 * demeter_model_report_stop() - tell the model that no manager runs
 */
void demeter_model_report_stop(void)
{
	if (!model.pdev)
		return;
	/* All zero: no manager runs. */
	memset(model.bar + DEMETER_MODEL_GUEST_OFFSET, 0, sizeof(struct demeter_model_guest));
	memunmap(model.bar);
	pci_release_region(model.pdev, IVSHMEM_BAR);
	pci_disable_device(model.pdev);
	pci_dev_put(model.pdev);
	model = (struct model){};
}
