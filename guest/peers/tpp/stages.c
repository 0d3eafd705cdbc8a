// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU time by stage, from the kernel's own functions.
 *
 * A function's own time is what it took less what the measured functions that it
 * called took, and less the time for which the task could run and did not. Time asleep
 * stays in: these functions sleep where memory is short and nowhere else.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fprobe.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/sched.h>

#include "contract.h"
#include "stages.h"

#define STAGES_TASKS_ORDER 8

/**
 * struct stages_task - a task inside measured functions
 * @task: the task; NULL: free. Taken and given back by the task itself.
 * @depth: measured functions that it is in
 * @called_ns: what those that the innermost one called took
 * @hint: it is in a hint fault
 *
 * A task that finds the slot of its hash taken is not measured.
 */
struct stages_task {
	struct task_struct *task;
	unsigned int depth;
	u64 called_ns;
	bool hint;
};

/**
 * struct stages_call - one call of a measured function
 * @begin_ns: when
 * @called_ns: what @called_ns of its caller was
 * @hint: what @hint of its caller was
 */
struct stages_call {
	u64 begin_ns;
	u64 called_ns;
	bool hint;
};

/**
 * struct stages_probe - a measured function
 * @function: its name
 * @stage: what its own time counts as
 * @faults: it handles all faults, of which only hint faults count
 * @probe: private
 */
struct stages_probe {
	const char *function;
	enum demeter_peer_stage stage;
	bool faults;
	struct fprobe probe;
};

static struct stages_probe stages_probes[] = {
	{ "task_numa_work", DEMETER_PEER_TRACK },
	{ "handle_mm_fault", DEMETER_PEER_TRACK, true },
	{ "migrate_misplaced_folio", DEMETER_PEER_MIGRATE },
	{ "demote_folio_list", DEMETER_PEER_MIGRATE },
	{ "shrink_active_list", DEMETER_PEER_CLASSIFY },
	{ "shrink_folio_list", DEMETER_PEER_CLASSIFY },
};

static struct stages_task stages_tasks[1 << STAGES_TASKS_ORDER];

static struct stages_task *stages_slot(void)
{
	return &stages_tasks[hash_ptr(current, STAGES_TASKS_ORDER)];
}

/* A clock that stands still while current waits for a CPU. */
static u64 stages_clock_ns(void)
{
#ifdef CONFIG_SCHED_INFO
	return ktime_get_ns() - current->sched_info.run_delay;
#else
	return ktime_get_ns();
#endif
}

static int stages_entry(struct fprobe *fp, unsigned long entry_ip, unsigned long ret_ip,
			struct pt_regs *regs, void *data)
{
	struct stages_task *slot = stages_slot();
	struct stages_call *call = data;

	if (READ_ONCE(slot->task) != current && cmpxchg(&slot->task, NULL, current))
		return 1;
	slot->depth++;
	call->called_ns = slot->called_ns;
	call->hint = slot->hint;
	slot->called_ns = 0;
	slot->hint = false;
	call->begin_ns = stages_clock_ns();
	return 0;
}

static void stages_exit(struct fprobe *fp, unsigned long entry_ip, unsigned long ret_ip,
			struct pt_regs *regs, void *data)
{
	const struct stages_probe *probe = container_of(fp, struct stages_probe, probe);
	struct stages_task *slot = stages_slot();
	const struct stages_call *call = data;
	u64 took_ns = stages_clock_ns() - call->begin_ns;

	if (!probe->faults || slot->hint)
		atomic64_add(took_ns - slot->called_ns, &demeter_peer_stage_ns[probe->stage]);
	slot->called_ns = call->called_ns + took_ns;
	slot->hint = call->hint;
	if (!--slot->depth) {
		slot->called_ns = 0;
		/* Pairs with the cmpxchg() of the next one: it sees all zero. */
		smp_store_release(&slot->task, NULL);
	}
}

void demeter_stages_hint_fault(void)
{
	struct stages_task *slot = stages_slot();

	if (READ_ONCE(slot->task) == current)
		slot->hint = true;
}

static int stages_watch(struct stages_probe *probe)
{
	int ret;

	probe->probe = (struct fprobe){
		.entry_handler = stages_entry,
		.exit_handler = stages_exit,
		.entry_data_size = sizeof(struct stages_call),
		.nr_maxactive = 1 << STAGES_TASKS_ORDER,
	};
	ret = register_fprobe_syms(&probe->probe, &probe->function, 1);
	if (ret)
		pr_err("%s() cannot be measured (error %d); next: set params/stages to 0\n",
		       probe->function, ret);
	return ret;
}

int demeter_stages_start(void)
{
	size_t i;
	int ret;

	memset(stages_tasks, 0, sizeof(stages_tasks));
	for (i = 0; i < ARRAY_SIZE(stages_probes); i++) {
		ret = stages_watch(&stages_probes[i]);
		if (!ret)
			continue;
		while (i--)
			unregister_fprobe(&stages_probes[i].probe);
		return ret;
	}
	return 0;
}

void demeter_stages_stop(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(stages_probes); i++)
		unregister_fprobe(&stages_probes[i].probe);
}
