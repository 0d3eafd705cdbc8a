// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pressure stall information of the guest's memory.
 */
#include <linux/kernel.h>
#include <linux/string.h>

#include "balloon.h"

/* "some avg10=… avg60=… avg300=… total=MICROSECONDS\nfull …\n" */
static bool total_of(const char *text, const char *kind, u64 *total_us)
{
	const char *line = strstr(text, kind);
	const char *total = line ? strstr(line, "total=") : NULL;

	return total && sscanf(total, "total=%llu", total_us) == 1;
}

/**
 * demeter_pressure_read() - how long tasks have stalled for memory since boot
 * @some_us: some of them
 * @full_us: all of them at once
 *
 * Return: false if this kernel does not tell; both are 0 then.
 */
bool demeter_pressure_read(u64 *some_us, u64 *full_us)
{
	char text[256];

	if (demeter_psi_text(text, sizeof(text)) && total_of(text, "some", some_us) &&
	    total_of(text, "full", full_us))
		return true;
	*some_us = 0;
	*full_us = 0;
	return false;
}
