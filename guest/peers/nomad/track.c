// SPDX-License-Identifier: GPL-2.0-only
/* TPP's tracking, compiled into this manager. */
#include "../tpp/stages.c"
#include "../tpp/track.c"
