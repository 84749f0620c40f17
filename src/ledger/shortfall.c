/* SPDX-License-Identifier: Apache-2.0 */
/* Why a request is not granted: who holds what, as numbers and as a sentence. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "ledger/tenant.h"

enum { HOLDERS_TOLD = 3, NAME_BYTES = TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES };

struct text {
    char bytes[240];
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void append(struct text *text, const char *format,
                                                         ...) {
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text->bytes + text->length, sizeof text->bytes - text->length, format,
                       arguments);
    va_end(arguments);
    text->length += length > 0 ? (size_t)length : 0;
    if (text->length >= sizeof text->bytes)
        text->length = sizeof text->bytes - 1;
}

struct tg__amount tg__amount(uint64_t bytes) {
    struct tg__amount amount;

    if (bytes >= UINT64_C(1) << 30)
        snprintf(amount.text, sizeof amount.text, "%.1f GiB", (double)bytes / (1 << 30));
    else if (bytes >= UINT64_C(1) << 20)
        snprintf(amount.text, sizeof amount.text, "%.1f MiB", (double)bytes / (1 << 20));
    else
        snprintf(amount.text, sizeof amount.text, "%" PRIu64 " bytes", bytes);
    return amount;
}

static uint64_t held(const struct tg__claim *claim) {
    return tg__sum(tg__sum(claim->occupied_bytes, claim->reserved_bytes), claim->declared_bytes);
}

/* One tag of one tenant of the survey. */
struct holding {
    const struct tg__tenant_row *row;
    const struct tg__tag_row *tag;
    uint64_t size_bytes;
};

/* The next in order of size after `before` (NULL: the largest), so that repeated calls list all. */
static struct holding next_holding(const struct tg__survey *survey, const struct holding *before) {
    struct holding best = {0};

    for (uint32_t i = 0; i < survey->claim_count; i++) {
        for (uint32_t k = 0; k < survey->rows[i].tag_count; k++) {
            const struct tg__tag_row *tag = &survey->rows[i].tags[k];
            uint64_t size_bytes = tg__sum(tg__sum(tag->occupied_bytes, tag->reserved_bytes),
                                          tag->declared_bytes);
            bool is_told = before != NULL && (size_bytes > before->size_bytes ||
                                              (size_bytes == before->size_bytes &&
                                               tag <= before->tag));
            if (i != survey->self && !is_told && size_bytes > best.size_bytes)
                best = (struct holding){&survey->rows[i], tag, size_bytes};
        }
    }
    return best;
}

static void append_holders(struct text *text, const struct tg__survey *survey) {
    struct holding holding = next_holding(survey, NULL);
    const char *before = ": ";

    for (int told = 0; told < HOLDERS_TOLD && holding.size_bytes > 0; told++) {
        char name[NAME_BYTES];
        tg__row_name(holding.row, name, sizeof name);
        append(text, "%s%s %.31s %s", before, name, holding.tag->name,
               tg__amount(holding.size_bytes).text);
        before = ", ";
        holding = next_holding(survey, &holding);
    }
    if (holding.size_bytes > 0)
        append(text, ", and more");
}

static void fill(struct tg_tenant *tenant, const struct tg__ask *ask,
                 const struct tg__admit_output *answer, int status) {
    struct tg_shortfall *out = &tenant->shortfall;
    struct holding holding = next_holding(tenant->survey, NULL);

    memset(out, 0, sizeof *out);
    out->status = status;
    out->asked_bytes = ask->size_bytes;
    out->available_bytes = answer->available_bytes;
    out->missing_bytes = ask->size_bytes > answer->available_bytes
                             ? ask->size_bytes - answer->available_bytes
                             : 0;
    out->orphaned_bytes = answer->orphaned_bytes;
    out->unattributed_bytes = answer->unattributed_bytes;
    if (holding.size_bytes > 0) {
        tg__row_name(holding.row, out->holder, sizeof out->holder);
        memcpy(out->tag, holding.tag->name, sizeof out->tag);
        out->holder_bytes = holding.size_bytes;
    }
}

static void tell_no_fit(struct text *text, const struct tg_tenant *tenant,
                        const struct tg__ask *ask, const struct tg__admit_output *answer) {
    append(text, "%s needs %s, %s can be had", ask->tag, tg__amount(ask->size_bytes).text,
           tg__amount(answer->available_bytes).text);
    append_holders(text, tenant->survey);
    if (answer->orphaned_bytes > 0)
        append(text, ", of the dead %s", tg__amount(answer->orphaned_bytes).text);
    if (answer->unattributed_bytes > 0)
        append(text, ", unattributed %s", tg__amount(answer->unattributed_bytes).text);
}

static void tell_never(struct text *text, const struct tg_tenant *tenant,
                       const struct tg__ask *ask) {
    const struct tg__survey *survey = tenant->survey;
    const struct tg__claim *self = &survey->claims[survey->self];

    append(text, "%s needs %s, more than the device's %s beside the %s that %s holds itself",
           ask->tag, tg__amount(ask->size_bytes).text, tg__amount(survey->driver.total_bytes).text,
           tg__amount(held(self)).text, survey->rows[survey->self].name);
}

static void tell_starting(struct text *text, const struct tg_tenant *tenant,
                          const struct tg__ask *ask, const struct tg__admit_output *answer) {
    char name[NAME_BYTES];

    const struct tg__tenant_row *row = &tenant->survey->rows[answer->other];

    tg__row_name(row, name, sizeof name);
    append(text, row->is_starting == TG_START_UP ? "%s (%s) has to wait: " TG__STARTING
                                                 : "%s (%s) has to wait: " TG__GIVING,
           ask->tag, tg__amount(ask->size_bytes).text, name);
}

static void tell_cycle(struct text *text, const struct tg_tenant *tenant,
                       const struct tg__ask *ask, const struct tg__admit_output *answer) {
    const struct tg__survey *survey = tenant->survey;
    const struct tg__claim *self = &survey->claims[survey->self];
    const struct tg__claim *other = &survey->claims[answer->other];
    char self_name[NAME_BYTES], other_name[NAME_BYTES];

    tg__row_name(&survey->rows[survey->self], self_name, sizeof self_name);
    tg__row_name(&survey->rows[answer->other], other_name, sizeof other_name);
    append(text, "%s would wait for ever: %s holds %s and needs %s for %s, %s holds %s and waits "
                 "for %s",
           ask->tag, self_name, tg__amount(held(self)).text,
           tg__amount(ask->size_bytes).text, ask->tag, other_name,
           tg__amount(held(other)).text,
           tg__amount(other->wait_bytes).text);
}

int tg__shortfall_tell(struct tg_tenant *tenant, const struct tg__ask *ask,
                       const struct tg__admit_output *answer, int status) {
    struct text text = {.length = 0};

    fill(tenant, ask, answer, status);
    if (status == TG_ENEVERFITS)
        tell_never(&text, tenant, ask);
    else if (status == TG_ECYCLE)
        tell_cycle(&text, tenant, ask, answer);
    else if (status == TG_ESTARTING)
        tell_starting(&text, tenant, ask, answer);
    else
        tell_no_fit(&text, tenant, ask, answer);
    return tg__fail(status, "%s", text.bytes);
}
