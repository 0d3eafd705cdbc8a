/* SPDX-License-Identifier: GPL-2.0-only */
/* Version of the modules: that of the whole project, see Cargo.toml. */
#ifndef DEMETER_COMPAT_VERSION_H
#define DEMETER_COMPAT_VERSION_H

#define DEMETER_MODULE_VERSION "0.1.0"

#endif /* DEMETER_COMPAT_VERSION_H */
