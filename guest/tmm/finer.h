/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Finer: base pages of granules whose accesses concentrate. What is decided, and how,
 * is core/finer.c; this takes the samples there, divides huge pages, keeps track of
 * where their pages are, and shows them to the planner as classes beside the ranges.
 *
 * All of it is the epoch worker's, but for the numbers in stats/finer.
 *
 * Nothing is divided where a tier has several nodes, where groups of cgroups are
 * named, or where samples do not tell the page.
 */
#ifndef DEMETER_FINER_KERNEL_H
#define DEMETER_FINER_KERNEL_H

#include <demeter/finer_budget.h>
#include <demeter/finer_gate.h>

#include "refusal.h"

struct attribute_group;
struct demeter_context;
struct demeter_count;
struct demeter_folio_list;
struct demeter_sample;
struct demeter_target;

/* Of params/finer: never, always, or where the gate (core/finer_gate.c) is open. */
enum { DEMETER_FINER_OFF, DEMETER_FINER_ON, DEMETER_FINER_AUTO };

/* finer.c */
void demeter_finer_stop(void);
bool demeter_finer_takes(struct demeter_target *target, u64 gva, u16 tier);
void demeter_finer_hear_pace(void);
void demeter_finer_epoch(struct demeter_context *ctx);
void demeter_finer_set_cut(const struct demeter_rank_entry *entries, u32 nr);
bool demeter_finer_is_denser(void);
bool demeter_finer_holds(void);
bool demeter_finer_wants_pace(void);
u64 demeter_finer_period(u64 period);
u64 demeter_finer_extra(u32 kind);

u32 demeter_finer_capacity(void);

/* finer_accounts.c */
void demeter_finer_keep_accounts(u32 dense_shift);
bool demeter_finer_can_afford(void);
bool demeter_finer_covers_look(void);
u32 demeter_finer_affordable_shift(u32 shift);
void demeter_finer_commit(u64 ns);
void demeter_finer_charge(u64 most_ns);
u64 demeter_finer_spent_ns(void);

/* finer_place.c */
u32 demeter_finer_room(void);
u32 demeter_finer_publish(struct demeter_target *target, struct demeter_rank_entry *entries,
			  u32 own, u32 room);
void demeter_finer_warm(const struct demeter_target *target, struct demeter_count *counts, u32 nr);
u64 demeter_finer_isolate(const struct demeter_rank_entry *entry, enum demeter_tier tier, u64 pages,
			  struct demeter_folio_list *list, struct demeter_refusals *why);
void demeter_finer_flushed(bool all);
u64 demeter_finer_around(const struct demeter_rank_entry *entry, u64 *from);
bool demeter_finer_skip(const struct demeter_target *target, u64 *at, u64 *stop);
void demeter_finer_outcome(const struct demeter_rank_entry *entry, enum demeter_tier tier,
			   bool moved);
void demeter_finer_back_off(struct demeter_rank_entry *entry);
const struct demeter_rank_entry *demeter_finer_classes_of(u32 space);

/* Between the three: what is looked at, NULL while nothing is. */
extern struct demeter_finer *demeter_finer_table;

extern const struct attribute_group demeter_finer_stats_group;

#endif /* DEMETER_FINER_KERNEL_H */
