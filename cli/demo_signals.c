/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_signals.h"

#include <signal.h>
#include <stddef.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int number) {
    (void)number;
    is_interrupted = 1;
}

static void handle(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler}; /* no SA_RESTART: poll returns */

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

void demo_signals_open(void) {
    handle(on_interrupt);
}

void demo_signals_ignore(void) {
    handle(SIG_IGN);
}

bool demo_signals_stop(void) {
    return is_interrupted != 0;
}
