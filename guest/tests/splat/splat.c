// SPDX-License-Identifier: GPL-2.0-only
/*
 * Make one mistake of the kind that is named, for the test of a debug kernel.
 *
 *   insmod demeter_splat.ko mistake=locks
 *
 * Never for a kernel that anybody needs: each is a real one.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/list.h>
#include <linux/mmdebug.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/timer.h>
#include <linux/vmalloc.h>

static char *mistake = "";
module_param(mistake, charp, 0444);
MODULE_PARM_DESC(mistake, "What to do wrong");

static DEFINE_MUTEX(first_lock); /* protects nothing, like the next */
static DEFINE_MUTEX(second_lock);
static DEFINE_SPINLOCK(spin);

/* Each lock inside the other: nobody waits for ever, but two tasks could. */
static void circular_locks(void)
{
	mutex_lock(&first_lock);
	mutex_lock(&second_lock);
	mutex_unlock(&second_lock);
	mutex_unlock(&first_lock);

	mutex_lock(&second_lock);
	mutex_lock(&first_lock);
	mutex_unlock(&first_lock);
	mutex_unlock(&second_lock);
}

static void sleep_in_atomic(void)
{
	spin_lock(&spin);
	might_sleep();
	spin_unlock(&spin);
}

/* The compiler must not see through it. */
static noinline int shifted(int value, int by)
{
	OPTIMIZER_HIDE_VAR(by);
	return value << by;
}

static void undefined_shift(void)
{
	pr_info("a shift by too much: %d\n", shifted(1, 77));
}

static void read_past_the_end(void)
{
	size_t size = 64;
	char *memory = kmalloc(size, GFP_KERNEL);

	if (!memory)
		return;
	OPTIMIZER_HIDE_VAR(size);
	pr_info("behind kmalloc: %d\n", READ_ONCE(memory[size]));
	kfree(memory);
}

static void read_past_vmalloc(void)
{
	size_t size = PAGE_SIZE - 64;
	char *memory = vmalloc(size);

	if (!memory)
		return;
	OPTIMIZER_HIDE_VAR(size);
	pr_info("behind vmalloc: %d\n", READ_ONCE(memory[size]));
	vfree(memory);
}

static void broken_list(void)
{
	struct list_head head, entry, other;

	INIT_LIST_HEAD(&head);
	INIT_LIST_HEAD(&other);
	list_add(&entry, &head);
	entry.next = &other;
	list_del(&entry);
}

static void failed_vm_check(void)
{
	VM_WARN_ON(!list_empty(&(struct list_head){ NULL, NULL }));
}

static void timer_function(struct timer_list *timer)
{
}

/* Memory that is freed with a timer running in it. */
static void freed_timer(void)
{
	struct timer_list *timer = kmalloc(sizeof(*timer), GFP_KERNEL);

	if (!timer)
		return;
	timer_setup(timer, timer_function, 0);
	mod_timer(timer, jiffies + 3600 * HZ);
	kfree(timer);
}

static const struct {
	const char *name;
	void (*make)(void);
} mistakes[] = {
	{ "locks", circular_locks },	  { "sleep", sleep_in_atomic },
	{ "shift", undefined_shift },	  { "vm", failed_vm_check },
	{ "list", broken_list },	  { "object", freed_timer },
	{ "kmalloc", read_past_the_end }, { "vmalloc", read_past_vmalloc },
};

static int __init demeter_splat_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(mistakes); i++) {
		if (strcmp(mistakes[i].name, mistake))
			continue;
		mistakes[i].make();
		return 0;
	}
	pr_err("no mistake is called \"%s\"; next: choose one of those in splat.c\n", mistake);
	return -EINVAL;
}
module_init(demeter_splat_init);

static void __exit demeter_splat_exit(void)
{
}
module_exit(demeter_splat_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Mistakes made on purpose, for tests");
