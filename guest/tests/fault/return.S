/* SPDX-License-Identifier: GPL-2.0-only */
/* What a function that fails consists of. */
#include <linux/linkage.h>
#include <asm/ibt.h>

SYM_FUNC_START(demeter_fault_return)
	ENDBR
	RET
SYM_FUNC_END(demeter_fault_return)
