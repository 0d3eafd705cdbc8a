/* SPDX-License-Identifier: GPL-2.0-only */
/* A small VM whose memory is a part of this process, see hammer_kvm.c. */
#ifndef DEMETER_HAMMER_VM_H
#define DEMETER_HAMMER_VM_H

#include <pthread.h>

#include "hammer.h"

struct kvm_run;

struct vm {
	int fd, vcpu;
	struct kvm_run *run;
	size_t run_bytes;
	char *low;  /* its code, and what it reports */
	char *data; /* what it counts in */
	size_t pages;
	pthread_t thread;
	uint32_t asked;
	volatile bool ended;
	unsigned int exit_reason;
	int error;
	bool bad; /* it found a wrong number, or ended in another way; after vm_stop() */
};

bool kvm_ready(void); /* loads KVM's modules */
/* Run a VM that counts in data, on CPU 1. */
bool vm_start(struct vm *vm, char *data, size_t pages);
uint32_t vm_sweeps(const struct vm *vm);
/* Wait until it has counted so often; false: it has ended, or stands still. */
bool vm_sweep(const struct vm *vm, unsigned int sweeps);
/* Write into each page; in how many does the VM not answer? */
size_t vm_unanswered(struct vm *vm);
/* End it; how many pages are not as it left them? */
size_t vm_stop(struct vm *vm);

#endif /* DEMETER_HAMMER_VM_H */
