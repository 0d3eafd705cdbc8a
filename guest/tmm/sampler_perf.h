/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the samplers "pebs" and "ibs" share: one counter of the kernel's perf
 * per CPU, and what its records mean.
 */
#ifndef DEMETER_SAMPLER_PERF_H
#define DEMETER_SAMPLER_PERF_H

#include <linux/perf_event.h>

#include "sampler.h"

int demeter_perf_refuse(char *reason, size_t size, int error, const char *why, const char *next);

struct perf_event *demeter_perf_claim(struct perf_event_attr *attr,
				      perf_overflow_handler_t handler);
void demeter_perf_release(void);
int demeter_perf_start(unsigned int cpu, struct perf_event_attr *attr,
		       perf_overflow_handler_t handler);
void demeter_perf_stop(unsigned int cpu);
void demeter_perf_restart(void);
unsigned int demeter_perf_alive(void);
void demeter_perf_set_period(u64 period);
void demeter_perf_set_each(unsigned int cpu, bool each);
bool demeter_perf_is_each(unsigned int cpu);
void demeter_perf_collect(void);
bool demeter_perf_collect_here(void);
u64 demeter_perf_lost(void);
bool demeter_perf_sees(const struct mm_struct *mm);

bool demeter_perf_is_ours(const struct perf_event *event);
void demeter_perf_note_throttling(const struct perf_event *event);
u64 demeter_perf_latency_ns(const struct perf_sample_data *data);
u16 demeter_perf_tier(const struct perf_sample_data *data);

/* sampler_form.c */
void demeter_form_start(void);
void demeter_form_tick(void);
u32 demeter_form_least_shift(void);
u64 demeter_form_record_ns(void);

/* perf_hook.c */
int demeter_perf_hook(void (*record)(struct perf_sample_data *data));
void demeter_perf_unhook(void);
void demeter_perf_hook_look(void);
void demeter_perf_hook_time(void);

#endif /* DEMETER_SAMPLER_PERF_H */
