/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * void *demeter_contents_swap_groups(void *a, void *b, size_t bytes)
 *
 * Exchanges groups of 16 bytes, two a round, until all are exchanged (returns
 * NULL) or a load fails (returns the group that cannot be read). All loads of a
 * group come before its first store, so what is before the one that failed is
 * exchanged, and nothing else is.
 *
 * Loads of eight aligned bytes are recoverable also on CPUs where string moves
 * are not.
 */
#include <linux/linkage.h>
#include <asm/asm.h>
#include <asm/ibt.h>

#define MAY_FAIL(label, bad) _ASM_EXTABLE_TYPE(label, bad, EX_TYPE_DEFAULT_MCE_SAFE)

SYM_FUNC_START(demeter_contents_swap_groups)
	ENDBR
	add	%rdi, %rdx
.Lround:
	cmp	%rdx, %rdi
	jae	.Ldone
1:	mov	(%rdi), %r8
2:	mov	8(%rdi), %r9
3:	mov	(%rsi), %r10
4:	mov	8(%rsi), %r11
	mov	%r8, (%rsi)
	mov	%r9, 8(%rsi)
	mov	%r10, (%rdi)
	mov	%r11, 8(%rdi)
5:	mov	16(%rdi), %r8
6:	mov	24(%rdi), %r9
7:	mov	16(%rsi), %r10
8:	mov	24(%rsi), %r11
	mov	%r8, 16(%rsi)
	mov	%r9, 24(%rsi)
	mov	%r10, 16(%rdi)
	mov	%r11, 24(%rdi)
	add	$32, %rdi
	add	$32, %rsi
	jmp	.Lround
.Ldone:
	xor	%eax, %eax
	RET
.Lsecond_bad_a:
	add	$16, %rdi
.Lfirst_bad_a:
	mov	%rdi, %rax
	RET
.Lsecond_bad_b:
	add	$16, %rsi
.Lfirst_bad_b:
	mov	%rsi, %rax
	RET
SYM_FUNC_END(demeter_contents_swap_groups)

	MAY_FAIL(1b, .Lfirst_bad_a)
	MAY_FAIL(2b, .Lfirst_bad_a)
	MAY_FAIL(3b, .Lfirst_bad_b)
	MAY_FAIL(4b, .Lfirst_bad_b)
	MAY_FAIL(5b, .Lsecond_bad_a)
	MAY_FAIL(6b, .Lsecond_bad_a)
	MAY_FAIL(7b, .Lsecond_bad_b)
	MAY_FAIL(8b, .Lsecond_bad_b)
