// SPDX-License-Identifier: GPL-2.0-only
/*
 * A host of guests: pages of a process are moved while they are the memory of a
 * running VM, so that a second page table (AMD's NPT) maps them as well. The VM
 * counts in each of its pages and stops at the first wrong number; what the
 * process writes into a page the VM has to answer in the same one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/swap.h>
#include <unistd.h>

#include "hammer_vm.h"

#define CODE_GPA   0x1000u
#define REPORT_GPA 0x2000u
#define LOW_BYTES  (4 * PAGE)
#define DATA_GPA   0x10000000u
/* A host may be starved: only what stands still takes so long. */
#define LIMIT_NS   600000000000ULL

/*
 * Runs in 32-bit mode without paging. ebx: data, ecx: pages of it, edi: struct
 * vm_report, ebp: sweeps done. A page (struct vm_page) holds the number of sweeps
 * at both ends, and its own.
 */
extern const char vm_code[], vm_code_end[];
__asm__(".pushsection .rodata\n"
	".code32\n"
	"vm_code:\n"
	"1:	mov %ebx, %esi\n"
	"	xor %edx, %edx\n"
	"2:	mov (%esi), %eax\n"
	"	cmp %ebp, %eax\n"
	"	jne 3f\n"
	"	mov 4092(%esi), %eax\n"
	"	cmp %ebp, %eax\n"
	"	jne 3f\n"
	"	mov 4(%esi), %eax\n"
	"	cmp %edx, %eax\n"
	"	jne 3f\n"
	"	mov 8(%esi), %eax\n"
	"	mov %eax, 12(%esi)\n"
	"	lea 1(%ebp), %eax\n"
	"	mov %eax, (%esi)\n"
	"	mov %eax, 4092(%esi)\n"
	"	add $4096, %esi\n"
	"	inc %edx\n"
	"	cmp %ecx, %edx\n"
	"	jb 2b\n"
	"	inc %ebp\n"
	"	mov %ebp, (%edi)\n"
	"	cmpl $0, 4(%edi)\n"
	"	je 1b\n"
	"	hlt\n"
	"3:	mov %edx, 12(%edi)\n"
	"	mov %eax, 16(%edi)\n"
	"	movl $1, 8(%edi)\n"
	"	hlt\n"
	"vm_code_end:\n"
	".code64\n"
	".popsection\n");

struct vm_report {
	uint32_t sweeps, stop, bad, bad_page, found;
};

struct vm_page {
	uint32_t sweeps, index, ask, answer;
	uint32_t unused[PAGE / 4 - 5];
	uint32_t sweeps_too;
};

static volatile struct vm_report *report_of(const struct vm *vm)
{
	return (volatile struct vm_report *)(vm->low + REPORT_GPA);
}

static volatile struct vm_page *page_of(const struct vm *vm, size_t page)
{
	return (volatile struct vm_page *)(vm->data + page * PAGE);
}

static void *run(void *argument)
{
	struct vm *vm = argument;

	pin_cpu(1);
	do {
		if (ioctl(vm->vcpu, KVM_RUN, 0) && errno != EINTR && errno != EAGAIN) {
			vm->error = errno;
			break;
		}
	} while (vm->run->exit_reason == KVM_EXIT_INTR || vm->run->exit_reason == 0);
	vm->exit_reason = vm->run->exit_reason;
	vm->ended = true;
	return NULL;
}

static int add_memory(const struct vm *vm, unsigned int slot, uint64_t gpa, const char *at,
		      size_t bytes)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot,
		.guest_phys_addr = gpa,
		.memory_size = bytes,
		.userspace_addr = (uintptr_t)at,
	};

	return ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &region);
}

static int set_registers(const struct vm *vm)
{
	struct kvm_regs regs = {
		.rip = CODE_GPA,
		.rflags = 2,
		.rbx = DATA_GPA,
		.rcx = vm->pages,
		.rdi = REPORT_GPA,
	};
	struct kvm_segment flat = { .limit = 0xffffffff, .present = 1, .s = 1, .db = 1, .g = 1 };
	struct kvm_sregs sregs;

	if (ioctl(vm->vcpu, KVM_GET_SREGS, &sregs))
		return -1;
	flat.selector = 16;
	flat.type = 3;
	sregs.ds = sregs.es = sregs.ss = sregs.fs = sregs.gs = flat;
	flat.selector = 8;
	flat.type = 11;
	sregs.cs = flat;
	sregs.cr0 |= 1;
	return ioctl(vm->vcpu, KVM_SET_SREGS, &sregs) || ioctl(vm->vcpu, KVM_SET_REGS, &regs);
}

static int create(struct vm *vm)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), run_bytes;

	if (kvm < 0)
		return -1;
	vm->fd = ioctl(kvm, KVM_CREATE_VM, 0);
	run_bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	close(kvm);
	if (vm->fd < 0)
		return -1;
	vm->vcpu = ioctl(vm->fd, KVM_CREATE_VCPU, 0);
	if (vm->vcpu < 0)
		return -1;
	vm->run_bytes = run_bytes;
	vm->run = mmap(NULL, run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vm->vcpu, 0);
	if (vm->run == MAP_FAILED)
		return -1;
	memcpy(vm->low + CODE_GPA, vm_code, vm_code_end - vm_code);
	return add_memory(vm, 0, 0, vm->low, LOW_BYTES) ||
	       add_memory(vm, 1, DATA_GPA, vm->data, vm->pages * PAGE) || set_registers(vm);
}

bool vm_start(struct vm *vm, char *data, size_t pages)
{
	size_t i;

	memset(vm, 0, sizeof(*vm));
	vm->data = data;
	vm->pages = pages;
	vm->low = mmap(NULL, LOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (i = 0; i < pages; i++)
		*page_of(vm, i) = (struct vm_page){ .index = i };
	if (vm->low == MAP_FAILED || create(vm) || pthread_create(&vm->thread, NULL, run, vm)) {
		check(false, "a VM can be made: %s", strerror(errno));
		return false;
	}
	return true;
}

uint32_t vm_sweeps(const struct vm *vm)
{
	return report_of(vm)->sweeps;
}

bool vm_sweep(const struct vm *vm, unsigned int sweeps)
{
	uint32_t begin = vm_sweeps(vm);
	uint64_t begin_ns = now_ns();

	while (vm_sweeps(vm) - begin < sweeps) {
		if (vm->ended || now_ns() - begin_ns > LIMIT_NS)
			return false;
		usleep(1000);
	}
	return true;
}

size_t vm_unanswered(struct vm *vm)
{
	size_t i, wrong = 0;

	vm->asked++;
	for (i = 0; i < vm->pages; i++)
		page_of(vm, i)->ask = vm->asked;
	/* The sweep that is under way has some pages behind it. */
	if (!vm_sweep(vm, 2))
		return vm->pages;
	for (i = 0; i < vm->pages; i++)
		wrong += page_of(vm, i)->answer != vm->asked;
	return wrong;
}

size_t vm_stop(struct vm *vm)
{
	volatile struct vm_report *report = report_of(vm);
	size_t i, wrong = 0;

	report->stop = 1;
	pthread_join(vm->thread, NULL);
	vm->bad = report->bad || vm->error || vm->exit_reason != KVM_EXIT_HLT;
	if (vm->bad)
		printf("#   VM: exit %u, errno %d, page %u has %u after %u sweeps\n",
		       vm->exit_reason, vm->error, report->bad_page, report->found, report->sweeps);
	for (i = 0; i < vm->pages; i++)
		wrong += page_of(vm, i)->index != i || page_of(vm, i)->sweeps != report->sweeps ||
			 page_of(vm, i)->sweeps_too != report->sweeps;
	munmap((void *)vm->run, vm->run_bytes);
	close(vm->vcpu);
	close(vm->fd);
	munmap(vm->low, LOW_BYTES);
	return wrong;
}

/* How many pages of a size the second page tables of all VMs map. */
static long npt_pages(const char *size)
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/pages_%s", size);
	return read_file(path, text, sizeof(text)) < 0 ? -1 : strtol(text, NULL, 10);
}

/* Memory of a VM, half of it on each node, in turn. */
static char *both_nodes(size_t bytes, bool thp)
{
	size_t step = thp ? THP : PAGE, at;
	char *data = reserve(bytes);

	for (at = 0; at < bytes; at += step)
		touch_on(at / step % 2 ? SMEM : FMEM, data + at, step, thp);
	return data;
}

struct trial {
	const char *name;
	size_t bytes;
	uint64_t moves; /* folios to be moved */
	bool thp;
	bool match;   /* sizes, by splits */
	bool migrate; /* instead of exchanging */
	bool swap;    /* out, in between */
};

static uint64_t exchange(const struct vm *vm, const struct trial *trial, uint64_t *refused)
{
	size_t bytes = vm->pages * PAGE, i;
	struct demeter_hammer_exchange req = {
		.max_pages = trial->thp ? 2 * THP / PAGE : 64,
		.batch_pairs = 64,
		.match = trial->match,
	};

	area_set(&req.hot, getpid(), SMEM, vm->data, bytes);
	area_set(&req.cold, getpid(), FMEM, vm->data, bytes);
	if (device_call(DEMETER_HAMMER_EXCHANGE, &req))
		return 0;
	for (i = 0; i < DEMETER_HAMMER_REASONS; i++)
		refused[i] += req.refused[i];
	return 2 * req.promoted_pages;
}

static uint64_t migrate(const struct vm *vm, const struct trial *trial, int to, uint64_t *refused)
{
	struct demeter_hammer_migrate req = {
		.max_pages = trial->thp ? THP / PAGE : 64,
		.target_nid = to,
	};
	size_t i;

	area_set(&req.area, getpid(), !to, vm->data, vm->pages * PAGE);
	if (device_call(DEMETER_HAMMER_MIGRATE, &req))
		return 0;
	for (i = 0; i < DEMETER_HAMMER_REASONS; i++)
		refused[i] += req.refused[i];
	return req.moved_pages;
}

static void try_moves(const struct trial *trial)
{
	uint64_t refused[DEMETER_HAMMER_REASONS] = { 0 }, moved = 0, begin = now_ns(), round = 0;
	uint64_t wanted = trial->moves * (trial->thp ? THP / PAGE : 1);
	char *data = both_nodes(trial->bytes, trial->thp);
	size_t unanswered = 0, wrong;
	uint32_t sweeps;
	long huge = 0;
	struct vm vm;

	if (!vm_start(&vm, data, trial->bytes / PAGE))
		return;
	vm_sweep(&vm, 1);
	sweeps = vm_sweeps(&vm);
	huge = npt_pages("2m");
	while (moved < wanted && now_ns() - begin < LIMIT_NS && !vm.ended) {
		moved += trial->migrate ? migrate(&vm, trial, round & 1, refused)
					: exchange(&vm, trial, refused);
		/* Its page tables are filled in between, and empty by and by if not. */
		vm_sweep(&vm, round % 4 == 3);
		if (trial->swap)
			madvise(data + round % 64 * 16 * PAGE, 16 * PAGE, 21 /* MADV_PAGEOUT */);
		if (round++ % 16 == 15)
			unanswered += vm_unanswered(&vm);
	}
	unanswered += vm_unanswered(&vm);
	sweeps = vm_sweeps(&vm) - sweeps;
	wrong = vm_stop(&vm);
	exchanges_total += moved / 2;
	check(moved >= wanted && !vm.bad && !wrong && !unanswered && sweeps > 1,
	      "a VM counts on while its memory is moved, %s: %llu pages moved, %u sweeps of %zu pages, %zu wrong, %zu unanswered",
	      trial->name, (unsigned long long)moved, sweeps, vm.pages, wrong, unanswered);
	if (trial->thp)
		check(huge > 0, "its second page table maps huge pages (%ld)", huge);
	printf("#   %llu rounds; refused:", (unsigned long long)round);
	print_refused(refused);
	putchar('\n');
	munmap(data, trial->bytes);
}

/*
 * The control: without notifications the VM goes on in the pages of before. That
 * has to be seen, or the trials above would see nothing either.
 */
static void try_deaf(void)
{
	size_t bytes = 64 * PAGE, unanswered;
	char *data = map_on(SMEM, bytes, false), *other = map_on(FMEM, bytes, false);
	struct demeter_hammer_exchange req = { .max_pages = 64, .batch_pairs = 64, .deaf = 1 };
	struct vm vm;

	if (!vm_start(&vm, data, 64))
		return;
	unanswered = vm_unanswered(&vm);
	check(!unanswered, "a VM answers in its memory");
	area_set(&req.hot, getpid(), SMEM, data, bytes);
	area_set(&req.cold, getpid(), FMEM, other, bytes);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	unanswered = vm_unanswered(&vm);
	/* Some pages may wait in a batch of another CPU. */
	check(req.promoted_pages > 32 && unanswered >= req.promoted_pages,
	      "without notifications none of it does (%llu pages exchanged, %zu unanswered)",
	      req.promoted_pages, unanswered);
	vm_stop(&vm);
	munmap(data, bytes);
	munmap(other, bytes);
}

#define SYSFS "/sys/kernel/mm/demeter/"

static long stat_of(const char *name)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), SYSFS "stats/%s", name);
	return read_file(path, text, sizeof(text)) < 0 ? -1 : strtol(text, NULL, 10);
}

/* THPs on FMEM. Not by move_pages(), which finds no armed page on Linux 6.1. */
static size_t huge_in_fmem(const char *at, size_t bytes)
{
	struct demeter_hammer_count req = { .other_nid = SMEM };

	area_set(&req.area, getpid(), FMEM, at, bytes);
	return device_call(DEMETER_HAMMER_COUNT, &req) ? 0 : req.pages[0] / (THP / PAGE);
}

/* Memory that nobody uses, so much that next to nothing of FMEM is free. */
static char *fill_fmem(size_t *bytes)
{
	long free = read_key("/sys/devices/system/node/node0/meminfo", "Node 0 MemFree");

	*bytes = free > 0 ? (((size_t)free << 10) - 16 * THP) & ~(THP - 1) : THP;
	return map_on(FMEM, *bytes, true);
}

static bool skipped_become(long spaces)
{
	uint64_t begin = now_ns();

	while (stat_of("touch/skipped_spaces") != spaces && now_ns() - begin < LIMIT_NS)
		usleep(10000);
	return stat_of("touch/skipped_spaces") == spaces;
}

/* A device that uses the VM's memory, too, is not to be told of each page that is armed. */
static void try_device_beside(void)
{
	int device = open("/dev/demeter-hammer", O_RDWR | O_CLOEXEC);
	bool skipped, watched;
	long armed, again;

	ioctl(device, DEMETER_HAMMER_SECONDARY);
	skipped = skipped_become(1);
	armed = stat_of("touch/armed");
	usleep(1000000);
	again = stat_of("touch/armed");
	check(skipped && again == armed,
	      "with a device beside KVM it is left alone: %ld spaces skipped, %ld pages armed since",
	      stat_of("touch/skipped_spaces"), again - armed);
	close(device);
	watched = skipped_become(0);
	usleep(1000000);
	check(watched && stat_of("touch/armed") > again, "and is not once that is gone");
}

/*
 * demeter.ko without a PMU: what a VM uses comes to FMEM, although no CPU but the VM's
 * touches it, and for it goes what nobody uses.
 */
static void try_managed(void)
{
	static const char parameters[] =
		"sampler=touch epoch_ms=100 latency_gap_ns=108 horizon_ms=600000";
	size_t bytes = 24 * THP, most = 22, idle_bytes, hot = 0, left, wrong;
	char *data = map_on(SMEM, bytes, true), *idle = fill_fmem(&idle_bytes), pid[16];
	uint64_t begin = now_ns();
	long ended;
	struct vm vm;

	/* Room comes from moves, not from reclaim. */
	swapoff("/dev/zram0");
	load_module_with("/modules/demeter.ko", parameters, true);
	snprintf(pid, sizeof(pid), "%d", getpid());
	if (!write_file(SYSFS "targets/pid_add", pid) || !vm_start(&vm, data, bytes / PAGE))
		return;
	write_file(SYSFS "enabled", "1");
	while (hot < most && now_ns() - begin < LIMIT_NS && !vm.ended) {
		usleep(100000);
		hot = huge_in_fmem(data, bytes);
	}
	left = huge_in_fmem(idle, idle_bytes);
	check(hot >= most && left < idle_bytes / THP && stat_of("touch/touched") > 0 &&
		      !stat_of("touch/skipped_spaces"),
	      "demeter.ko brings what a VM uses to FMEM: %zu of %zu THPs, and leaves there %zu of %zu that nobody uses; %ld touches, %ld spaces skipped, %.1f s",
	      hot, bytes / THP, left, idle_bytes / THP, stat_of("touch/touched"),
	      stat_of("touch/skipped_spaces"), (now_ns() - begin) / 1e9);
	check(!vm_unanswered(&vm), "it answers in its memory there");
	try_device_beside();
	write_file(SYSFS "enabled", "0");
	ended = stat_of("touch/touched") + stat_of("touch/retired") + stat_of("touch/lost_marks");
	check(ended == stat_of("touch/armed"), "%ld pages were armed, %ld are accounted for",
	      stat_of("touch/armed"), ended);
	wrong = vm_stop(&vm);
	check(!vm.bad && !wrong, "and has counted right all the time");
	check(!unload_module("demeter"), "demeter.ko can be unloaded");
	munmap(data, bytes);
	munmap(idle, idle_bytes);
}

bool kvm_ready(void)
{
	char order[512], path[128], *name, *rest = order;

	if (!access("/dev/kvm", F_OK))
		return true;
	if (read_file("/modules/kvm-load-order", order, sizeof(order)) <= 0)
		return false;
	while ((name = strsep(&rest, "\n")) && *name) {
		snprintf(path, sizeof(path), "/modules/%s", name);
		load_module(path, true);
	}
	mount("debug", "/sys/kernel/debug", "debugfs", 0, NULL);
	return !access("/dev/kvm", F_OK);
}

void test_kvm(void)
{
	static const struct trial trials[] = {
		{ .name = "4 KiB pages", .bytes = 512 * PAGE, .moves = 2000 },
		{ .name = "THPs", .bytes = 8 * THP, .moves = 40, .thp = true },
		{ .name = "4 KiB pages, migrated",
		  .bytes = 512 * PAGE,
		  .moves = 1000,
		  .migrate = true },
		{ .name = "THPs, migrated",
		  .bytes = 8 * THP,
		  .moves = 16,
		  .thp = true,
		  .migrate = true },
		{ .name = "4 KiB pages, swapped",
		  .bytes = 1024 * PAGE,
		  .moves = 1000,
		  .swap = true },
	};
	size_t i;

	if (!kvm_ready()) {
		check(false, "this guest can host guests");
		return;
	}
	pin_cpu(0);
	for (i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
		try_moves(&trials[i]);
	try_managed();
	check(kernel_log_clean(), "VMs: kernel log clean");
	try_deaf();
	/* Who is between the two halves of a notification meanwhile is warned of, once a boot. */
	kernel_log_clean();
	pin_cpu(-1);
}
