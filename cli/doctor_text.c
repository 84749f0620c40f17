/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "clean.h"
#include "doctor.h"

enum { TEXT_MOST = 1024 };

/* State and name before a line, or as much empty space. */
#define LINE "%-5s %-8s "
#define INDENT "               "

void finding_advice_print(const struct finding *finding, const char *indent) {
    if (finding->advice.text[0] == '\0')
        return;
    printf("%s-> ", indent);
    clean_print(stdout, finding->advice.text, TEXT_MOST);
    if (finding->command.text[0] != '\0') {
        fputs(": ", stdout);
        clean_print(stdout, finding->command.text, TEXT_MOST);
    }
    putchar('\n');
}

static void finding_print(unsigned check, const struct finding *finding) {
    const char *state = finding_state_text(finding->state);

    printf(LINE, finding->state == FINDING_SKIPPED ? "-" : state, check_name(check));
    clean_print(stdout, finding->text.text, TEXT_MOST);
    putchar('\n');
    finding_advice_print(finding, INDENT);
}

/* "verl 0.7.1 and newer, vllm, tp > 1" */
static int conditions_write(const struct feature *feature, char *text, size_t room) {
    bool has_since = *feature->since != '\0', has_until = *feature->until != '\0';
    int length = snprintf(text, room, "%s", feature->program);

    if (has_since && has_until)
        length += snprintf(text + length, room - (size_t)length, " %s and newer, before %s",
                           feature->since, feature->until);
    else if (has_since)
        length += snprintf(text + length, room - (size_t)length, " %s and newer", feature->since);
    else if (has_until)
        length += snprintf(text + length, room - (size_t)length, " before %s", feature->until);
    if (*feature->engine != '\0')
        length += snprintf(text + length, room - (size_t)length, ", %s", feature->engine);
    if (*feature->where != '\0')
        length += snprintf(text + length, room - (size_t)length, ", %s", feature->where);
    return length;
}

static void features_print(const struct doctor *doctor) {
    char conditions[256];
    int name_width = 0, width = 0;

    for (size_t i = 0; i < feature_count; i++) {
        int length = conditions_write(&features[i], conditions, sizeof conditions);

        width = length > width ? length : width;
        if (length > 0 && (int)strlen(features[i].name) > name_width)
            name_width = (int)strlen(features[i].name);
    }
    fputs("\nwhat works (* with what is installed here)\n", stdout);
    for (size_t i = 0; i < feature_count; i++) {
        const struct feature *feature = &features[i];
        int length = conditions_write(feature, conditions, sizeof conditions);

        printf("%c ", doctor_feature_applies(doctor, feature) ? '*' : ' ');
        if (length > 0)
            printf("%-*s  %-*s  ", name_width, feature->name, width, conditions);
        else
            printf("%-*s  ", name_width + 2 + width, feature->name);
        fputs(feature_state_text(feature->state), stdout);
        if (*feature->reason != '\0')
            printf(": %s", feature->reason);
        putchar('\n');
    }
}

void doctor_text_print(const struct doctor *doctor, const struct finding findings[CHECK_COUNT]) {
    for (unsigned i = 0; i < CHECK_COUNT; i++)
        finding_print(i, &findings[i]);
    features_print(doctor);
}
