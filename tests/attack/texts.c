/* An attack on the readers of texts with hostile tokenizers, prompts and captions of up to 400 KB. A case is made of
 * parts that multiply: steps by added tokens, replacements by themselves, pieces by their parts. It is read, and a
 * prompt of 64 KB is divided, in a process of its own that has SECONDS of CPU time and MEGABYTES of memory. Checked
 * afterwards:
 *
 *   - The process ended by itself, within its limits. Running out of memory is a finding.
 *   - What is refused is refused in a line that names it.
 *
 *     texts COUNT [FIRST [SEED]]
 *
 * A case depends on SEED and its number only, so `texts 1 NUMBER` repeats it. The last line has the counts and the
 * largest times and sizes. The exit status is 0 if nothing was found.
 */
#include "tests/attack/random.h"
#include "text/bpe.h"
#include "text/clean.h"
#include "text/bpe_encode.h"
#include "text/tiktoken.h"
#include "text/unigram.h"
#include "text/unigram_encode.h"
#include "tools/generate/prompts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SECONDS = 60, MEGABYTES = 0 }; /* no limit of memory: a sanitizer reserves terabytes */
#else
enum { SECONDS = 10, MEGABYTES = 512 };
#endif

enum { FILE_BYTES = 400000, PROMPT_BYTES = 1 << 16 };

typedef enum { CASE_JSON, CASE_TIKTOKEN, CASE_SPIECE, CASE_CAPTION, CASE_PROMPTS, CASES } case_kind;

static const char *const kind_names[CASES] = {"tokenizer.json", "emu3.tiktoken", "spiece.model", "caption", "prompts"};

/* How a case's process ends. */
enum { END_ACCEPTED = 0, END_REFUSED = 1, END_FOUND = 2 };

/* --- random parts ------------------------------------------------------------------------------------------------- */

static uint64_t state;

static size_t below(size_t n)
{
    return (size_t)(random_next(&state) % n);
}

/* Returns a number from 1 to 2^bits: a small one, the largest, or one whose logarithm is uniform. */
static size_t size_of(int bits)
{
    const size_t which = below(3);
    if (which < 2) return which ? (size_t)1 << bits : 1 + below(3);
    return 1 + below((size_t)1 << below((size_t)bits + 1));
}

static void put(text_buffer *b, const char *text)
{
    text_put(b, text, strlen(text));
}

__attribute__((format(printf, 2, 3))) static void put_format(text_buffer *b, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(b, text);
}

/* Writes a part up to `times` times, while the buffer has fewer than `most` bytes. */
static void put_times(text_buffer *b, const char *part, size_t times, size_t most)
{
    for (; times > 0 && b->length < most; times--) put(b, part);
}

#define ONE_OF(list) list[below(sizeof list / sizeof *list)]

static const char *const words[] = {"a", "b",        "ab",           "a ",        " ", "aab", "1",
                                    ".", "\xc3\xa9", "\xef\xb7\xba", "e\xcc\x81", "<", "'s"};

/* --- files of tokenizers ------------------------------------------------------------------------------------------ */

static void put_normalizer(text_buffer *b, const char *from, size_t from_times, const char *to, size_t to_times)
{
    static const char *const plain[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"};
    static const char *const expressions[] = {"(?:a|a){500}", "a*a*b", "(?:a+)+$", "\\\\s+", "a", "", "(?=a)", ".*"};
    const int kind = (int)(from_times + to_times) % 4;
    if (kind == 0) {
        put_format(b, "{\"type\":\"%s\"}", plain[to_times % 5]);
    } else if (kind == 1) {
        put(b, "{\"type\":\"Prepend\",\"prepend\":\"");
        put_times(b, to, to_times, FILE_BYTES);
        put(b, "\"}");
    } else {
        put_format(b, "{\"type\":\"Replace\",\"pattern\":{\"%s\":\"", kind == 2 ? "String" : "Regex");
        if (kind == 2)
            put_times(b, from, from_times, FILE_BYTES);
        else
            put(b, expressions[from_times % 8]);
        put(b, "\"},\"content\":\"");
        put_times(b, to, to_times, FILE_BYTES);
        put(b, "\"}");
    }
}

static void put_splitter(text_buffer *b)
{
    static const char *const splitters[] = {
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}",
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|a){500}\"},\"behavior\":\"Isolated\",\"invert\":false}",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\"},\"behavior\":\"Isolated\",\"invert\":false}",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a*a*[^a]\"},\"behavior\":\"MergedWithNext\",\"invert\":true}",
        "{\"type\":\"Split\",\"pattern\":{\"String\":\"aaaaaaaaaaaaaaab\"},\"behavior\":\"Removed\",\"invert\":false}",
        "{\"type\":\"Whitespace\"}",
        "{\"type\":\"Digits\",\"individual_digits\":true}",
        "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}",
    };
    put(b, ONE_OF(splitters));
}

/* Writes one step again and again, or several. */
static void put_steps(text_buffer *b, int is_split)
{
    text_buffer one = {0};
    const size_t times = size_of(13);
    const int repeats = below(3) > 0;
    for (size_t i = 0; i < times && b->length < FILE_BYTES / 2; i++) {
        if (i == 0 || !repeats) {
            one.length = 0;
            if (is_split)
                put_splitter(&one);
            else
                put_normalizer(&one, ONE_OF(words), size_of(8), ONE_OF(words), size_of(8));
        }
        put(b, i ? "," : "");
        text_put(b, one.data, one.length);
    }
    text_buffer_free(&one);
}

static void put_added(text_buffer *b)
{
    const size_t count = below(3) ? size_of(12) : 0, times = size_of(11);
    const char *const part = ONE_OF(words);
    const int single = (int)below(2), normalized = (int)below(2);
    for (size_t i = 0; i < count && b->length < FILE_BYTES; i++) {
        put_format(b, "%s{\"id\":%zu,\"content\":\"", i ? "," : "", 4 + i);
        put_times(b, part, times, FILE_BYTES);
        put_format(b, "%zu\",\"single_word\":%s,\"lstrip\":true,\"rstrip\":true,\"normalized\":%s,\"special\":true}", i,
                   single ? "true" : "false", normalized ? "true" : "false");
    }
}

static void make_json(text_buffer *b)
{
    put(b, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (below(2)) put_steps(b, 0);
    put(b, "]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (below(2)) put_steps(b, 1);
    put(b, "]},\"added_tokens\":[");
    put_added(b);
    put(b, "],\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",");
    if (below(4) == 0) {
        put(b, "\"byte_fallback\":true,\"end_of_word_suffix\":\"");
        put_times(b, ONE_OF(words), size_of(16), FILE_BYTES);
        put(b, "\",");
    }
    put(b, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3},\"merges\":[[\"a\",\"b\"]]}}");
}

static void make_tiktoken(text_buffer *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t families = size_of(10), step = size_of(4);
    size_t count = 0;
    for (; count < 256; count++) put_format(b, "%c%c== %zu\n", digits[count >> 2], digits[(count & 3) << 4], count);
    for (size_t family = 0; family <= families; family++)
        for (size_t thirds = 1; thirds <= 80 && b->length < FILE_BYTES; thirds += step) {
            if (family) put_format(b, "%c%cEB", 'c' + (int)(family / 60 % 8), digits[family % 60]);
            put_times(b, "YWFh", thirds, 2 * FILE_BYTES);
            put_format(b, " %zu\n", count++);
        }
}

static void put_varint(text_buffer *b, size_t n)
{
    for (; n > 127; n >>= 7) text_put(b, (const char[]){(char)(n | 0x80)}, 1);
    text_put(b, (const char[]){(char)n}, 1);
}

static void put_piece(text_buffer *b, const char *text, size_t length, float score, int type)
{
    text_buffer piece = {0};
    char bytes[4];
    memcpy(bytes, &score, 4);
    put(&piece, "\x0a");
    put_varint(&piece, length);
    text_put(&piece, text, length);
    put(&piece, "\x15");
    text_put(&piece, bytes, 4);
    put(&piece, "\x18");
    put_varint(&piece, (size_t)type);
    put(b, "\x0a");
    put_varint(b, piece.length);
    text_put(b, piece.data, piece.length);
    text_buffer_free(&piece);
}

static void make_spiece(text_buffer *b)
{
    static const float scores[] = {-1, 0, 1e5F, -1e5F, 3e38F, -3e38F};
    const size_t step = size_of(10);
    const int is_user = (int)below(2);
    char text[4097];
    memset(text, ONE_OF(words)[0], sizeof text);
    put_piece(b, "<unk>", 5, 0, 2);
    for (size_t n = 1; n <= 4096 && b->length < FILE_BYTES; n += step)
        put_piece(b, text, n, ONE_OF(scores), is_user ? 4 : 1);
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Writes up to `most` bytes of a few parts, repeated. */
static void make_text(text_buffer *b, const char *const *parts, size_t n, size_t most)
{
    text_buffer unit = {0};
    for (size_t i = size_of(3); i > 0; i--) put_times(&unit, parts[below(n)], size_of(6), 512);
    while (b->length + unit.length <= most) text_put(b, unit.data, unit.length);
    text_buffer_free(&unit);
}

static const char *const markup[] = {"<",    "<a ",  "<a/",      "<a b='", "</a", "<!--",  "<![if ", "<script>",
                                     "&",    "&#",   "&a;",      "'",      "\"",  "=",     ">",      "/",
                                     "http", "www:", ".com",     "@",      "#",   "1",     "-",      "_",
                                     "[",    " ",    "\xce\xa3", "a",      "1x",  "free ", "%3c",    ".png"};

static const char *const prompt_parts[] = {"{",      "[",        "\"",
                                           "\"\"",   ",",        "\t",
                                           "\n",     "\r",       "\r\n",
                                           "prompt", "Prompts,", "{\"prompt\": \"a\"}\n",
                                           "a cat",  "\\u0000",  "{\"annotations\": [",
                                           "\xff",   "caption,", "]",
                                           "}",      "[[[["};

/* --- a case ------------------------------------------------------------------------------------------------------- */

/* Checks a status and its line. Returns how the case ends. */
static int judge(mar_status status, const mar_err *err, const char *what)
{
    if (status == MAR_OK) return END_ACCEPTED;
    if (status != MAR_EFORMAT && status != MAR_EARG) {
        printf("%s: status %d: %s\n", what, (int)status, err->text);
        return END_FOUND;
    }
    if (*err->text && !strchr(err->text, '\n') && (status != MAR_EFORMAT || strncmp(err->text, "FILE: ", 6) == 0))
        return END_REFUSED;
    printf("%s: refused with the line \"%s\"\n", what, err->text);
    return END_FOUND;
}

static int read_bpe(case_kind kind, const text_buffer *file, const text_buffer *prompt)
{
    text_bpe *b;
    mar_err err = {0};
    text_ids out = {0};
    mar_status status = kind == CASE_JSON
                            ? text_bpe_read(file->data, file->length, "FILE", &b, &err)
                            : text_tiktoken_read(file->data, file->length, "FILE", "", 0, "FILE", &b, &err);
    if (status == MAR_OK) status = text_bpe_encode(b, prompt->data, prompt->length, &out, &err);
    const int end = judge(status, &err, kind_names[kind]);
    text_bpe_free(b);
    return end;
}

static int read_spiece(const text_buffer *file, const text_buffer *prompt)
{
    text_unigram *u;
    mar_err err = {0};
    text_ids out = {0};
    mar_status status = text_unigram_read(file->data, file->length, "FILE", &u, &err);
    if (status == MAR_OK) status = text_unigram_encode(u, prompt->data, prompt->length, &out, &err);
    const int end = judge(status, &err, kind_names[CASE_SPIECE]);
    text_unigram_free(u);
    return end;
}

static int read_prompts(text_buffer *file)
{
    static const char *const names[] = {"FILE", "FILE.csv", "FILE.tsv", "FILE.json", "FILE.jsonl", "FILE.txt"};
    prompts p = {0};
    if (!freopen("/dev/null", "w", stderr)) return END_FOUND;
    const int failed = prompts_parse(file->data, file->length, ONE_OF(names), &p);
    const int end = failed || p.skipped ? END_REFUSED : p.count > 0 ? END_ACCEPTED : END_FOUND;
    prompts_free(&p);
    return end;
}

static int clean_caption(const text_buffer *text)
{
    mar_err err = {0};
    char *cleaned;
    const int end = judge(text_clean_caption(text->data, text->length, &cleaned, &err), &err, kind_names[CASE_CAPTION]);
    free(cleaned);
    return end;
}

/* Makes a case and runs it. Returns how it ends. */
static int run_case(case_kind kind)
{
    text_buffer file = {0}, prompt = {0};
    text_put(&file, "", 0);
    text_put(&prompt, "", 0);
    if (kind == CASE_JSON) make_json(&file);
    if (kind == CASE_TIKTOKEN) make_tiktoken(&file);
    if (kind == CASE_SPIECE) make_spiece(&file);
    if (kind == CASE_CAPTION) make_text(&file, markup, sizeof markup / sizeof *markup, TEXT_CAPTION_MAX);
    if (kind == CASE_PROMPTS) make_text(&file, prompt_parts, sizeof prompt_parts / sizeof *prompt_parts, FILE_BYTES);
    make_text(&prompt, words, sizeof words / sizeof *words, PROMPT_BYTES);
    if (file.failed || prompt.failed) abort();
    int end;
    if (kind == CASE_SPIECE)
        end = read_spiece(&file, &prompt);
    else if (kind == CASE_CAPTION)
        end = clean_caption(&file);
    else if (kind == CASE_PROMPTS)
        end = read_prompts(&file);
    else
        end = read_bpe(kind, &file, &prompt);
    text_buffer_free(&file);
    text_buffer_free(&prompt);
    fflush(stdout);
    return end;
}

static void set_limit(int resource, rlim_t limit)
{
    const struct rlimit r = {limit, limit};
    if (limit && setrlimit(resource, &r) != 0) _exit(END_FOUND);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: texts COUNT [FIRST [SEED]]\n");
        return 2;
    }
    const long count = atol(argv[1]), first = argc > 2 ? atol(argv[2]) : 0;
    const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    long ends[3] = {0}, slowest = -1;
    double most_seconds = 0, most_megabytes = 0;
    for (long i = first; i < first + count; i++) {
        struct rusage used;
        int status = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            set_limit(RLIMIT_CPU, SECONDS);
            set_limit(RLIMIT_AS, (rlim_t)MEGABYTES << 20);
            state = seed ^ (uint64_t)i * 0xd1342543de82ef95u;
            exit(run_case(below(2) ? CASE_JSON : (case_kind)below(CASES)));
        }
        if (child < 0 || wait4(child, &status, 0, &used) != child) return 2;
        const int end = WIFEXITED(status) && WEXITSTATUS(status) < END_FOUND ? WEXITSTATUS(status) : END_FOUND;
        const double seconds = (double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec;
        if (end == END_FOUND)
            printf("case %ld: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (seconds > most_seconds) most_seconds = seconds, slowest = i;
        if ((double)used.ru_maxrss / 1024 > most_megabytes) most_megabytes = (double)used.ru_maxrss / 1024;
        ends[end]++;
    }
    printf("texts: %ld cases, %ld accepted, %ld refused, %ld findings; at most %.2f s (case %ld) and %.0f MB\n", count,
           ends[END_ACCEPTED], ends[END_REFUSED], ends[END_FOUND], most_seconds, slowest, most_megabytes);
    return ends[END_FOUND] ? 1 : 0;
}
