// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: load_crash_kernel KERNEL INITRD COMMAND-LINE
 * Has the kernel start that one when it crashes, as kexec -p -s does.
 */
#include <fcntl.h>
#include <linux/kexec.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int kernel, initrd;

	if (argc != 4) {
		fputs("usage: load_crash_kernel KERNEL INITRD COMMAND-LINE\n", stderr);
		return 2;
	}
	kernel = open(argv[1], O_RDONLY | O_CLOEXEC);
	initrd = open(argv[2], O_RDONLY | O_CLOEXEC);
	if (kernel < 0 || initrd < 0 ||
	    syscall(SYS_kexec_file_load, kernel, initrd, strlen(argv[3]) + 1, argv[3],
		    KEXEC_FILE_ON_CRASH)) {
		perror("load_crash_kernel: error: kexec_file_load; next: see crashkernel= and dmesg");
		return 1;
	}
	return 0;
}
