/* SPDX-License-Identifier: Apache-2.0 */
#include "stop_signal.h"

#include <signal.h>
#include <stddef.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int number) {
    (void)number;
    is_interrupted = 1;
}

/* Without SA_RESTART: poll returns. */
static void handle(void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

void stop_signal_catch(void) {
    handle(on_interrupt, 0);
}

void stop_signal_catch_first(void) {
    handle(on_interrupt, SA_RESETHAND);
}

void stop_signal_ignore(void) {
    handle(SIG_IGN, 0);
}

bool stop_signal_came(void) {
    return is_interrupted != 0;
}
