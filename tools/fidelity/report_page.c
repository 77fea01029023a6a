/* The page of `mar fidelity`: its record with kinds of verdicts, samples and acceptance maps. */
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/fidelity/compare.h"
#include "tools/fidelity/report.h"
#include "tools/page/page.h"

#include <cjson/cJSON.h>

/* Adds `count` pictures that are contiguous in memory. */
static void add_pictures(cJSON *run, const char *name, uint8_t *rgb, int count, int width, int height)
{
    cJSON *list = cJSON_AddArrayToObject(run, name);
    const size_t size = (size_t)width * (size_t)height * 3;
    for (int i = 0; i < count; i++) page_add_picture(list, &(image){width, height, rgb + (size_t)i * size});
}

int report_write_html(const fidelity *f, const char *path)
{
    static const char *const kinds[] = {
        [FIDELITY_SAME] = "same", [FIDELITY_UNSURE] = "unsure", [FIDELITY_CLOSE] = "close", [FIDELITY_OFF] = "off"};
    cJSON *record = report_record(f), *extras = page_add_extras(record, "fidelity");
    cJSON_AddBoolToObject(extras, "discrete", f->vocabulary > 0);
    cJSON_AddBoolToObject(extras, "judged", f->judged);
    cJSON_AddNumberToObject(extras, "channels", f->channels);
    cJSON_AddNumberToObject(extras, "positions", f->positions);
    cJSON_AddNumberToObject(extras, "tests", fidelity_tests(f));
    cJSON_AddNumberToObject(extras, "level", FIDELITY_LEVEL);
    cJSON *runs = cJSON_AddArrayToObject(extras, "runs"); /* the reference first */
    for (int i = 0; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        cJSON *o = cJSON_CreateObject();
        if (i > 0) cJSON_AddStringToObject(o, "finding", kinds[fidelity_find(f, r)]);
        add_pictures(o, "samples", r->rgb, f->shown, f->width, f->height);
        add_pictures(o, "maps", r->maps, r->stats.drafted > 0 ? r->map_count : 0, f->side, f->side);
        tool_json_append(runs, o);
    }
    return page_write(record, path);
}
