#include "tests/fuzz/pickles.h"

#include <stdio.h>
#include <string.h>

/* The operand after an operation's code: bytes, or a little-endian length and as many bytes, or two lines. */
typedef struct {
    uint8_t code;
    int8_t fixed;  /* bytes */
    int8_t length; /* bytes of the length; -1: two lines */
} operation;

static const operation operations[] = {
    {0x80, 1, 0}, {0x95, 8, 0}, {'.', 0, 0},  {'(', 0, 0},  {'0', 0, 0},  {'1', 0, 0},  {'2', 0, 0},  {'N', 0, 0},
    {0x88, 0, 0}, {0x89, 0, 0}, {'J', 4, 0},  {'K', 1, 0},  {'M', 2, 0},  {0x8a, 0, 1}, {0x8b, 0, 4}, {'G', 8, 0},
    {'X', 0, 4},  {0x8c, 0, 1}, {0x8d, 0, 8}, {'T', 0, 4},  {'U', 0, 1},  {'B', 0, 4},  {'C', 0, 1},  {0x8e, 0, 8},
    {0x96, 0, 8}, {')', 0, 0},  {0x85, 0, 0}, {0x86, 0, 0}, {0x87, 0, 0}, {'t', 0, 0},  {']', 0, 0},  {'l', 0, 0},
    {'a', 0, 0},  {'e', 0, 0},  {'}', 0, 0},  {'d', 0, 0},  {'s', 0, 0},  {'u', 0, 0},  {0x8f, 0, 0}, {0x90, 0, 0},
    {0x91, 0, 0}, {'c', 0, -1}, {0x93, 0, 0}, {'R', 0, 0},  {0x81, 0, 0}, {0x92, 0, 0}, {'b', 0, 0},  {'Q', 0, 0},
    {'q', 1, 0},  {'r', 4, 0},  {0x94, 0, 0}, {'h', 1, 0},  {'j', 4, 0},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static const char *const texts[] = {
    "storage",
    "cpu",
    "0",
    "1",
    "2",
    "model_ema",
    "model",
    "module",
    "state_dict",
    "argparse",
    "Namespace",
    "a",
    "b.weight",
    "class_emb.weight",
    "",
    "torch",
    "FloatStorage",
    "collections",
    "OrderedDict",
    "torch._utils",
    "_rebuild_tensor_v2",
    "\xff\xfe",
    "new\nline",
};
static const char *const classes[] = {
    "torch\nFloatStorage\n",
    "torch\nHalfStorage\n",
    "torch\nBFloat16Storage\n",
    "torch\nDoubleStorage\n",
    "torch\nLongStorage\n",
    "torch\nIntStorage\n",
    "torch\nShortStorage\n",
    "torch\nCharStorage\n",
    "torch\nByteStorage\n",
    "torch\nBoolStorage\n",
    "torch._utils\n_rebuild_tensor_v2\n",
    "torch._utils\n_rebuild_tensor\n",
    "torch._utils\n_rebuild_parameter\n",
    "torch._utils\n_rebuild_parameter_with_state\n",
    "collections\nOrderedDict\n",
    "collections\ndefaultdict\n",
    "os\nsystem\n",
    "argparse\nNamespace\n",
    "torch\nComplexFloatStorage\n",
    "torch.storage\nUntypedStorage\n",
    "torch._utils\n_rebuild_tensor_v3\n",
    "torch\nfloat8_e4m3fn\n",
    "torch\nfloat8_e5m2\n",
    "torch._tensor\n_rebuild_from_type_v2\n",
    "torch\nTensor\n",
};
enum { TEXTS = sizeof texts / sizeof *texts, CLASSES = sizeof classes / sizeof *classes, STORAGE_CLASSES = 10 };
static const size_t class_bytes[STORAGE_CLASSES] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};

static const operation *find(uint8_t code)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (operations[i].code == code) return &operations[i];
    return NULL;
}

/* Finds the operand at data[size]: sets its begin and returns its length, or -1. */
static int64_t operand(const operation *o, const uint8_t *data, size_t size, size_t *begin)
{
    *begin = o->length > 0 ? (size_t)o->length : 0;
    if (o->length < 0) {
        const uint8_t *first = memchr(data, '\n', size);
        const uint8_t *second = first ? memchr(first + 1, '\n', size - (size_t)(first + 1 - data)) : NULL;
        return second ? second + 1 - data : -1;
    }
    if (size < *begin) return -1;
    uint64_t n = (uint64_t)o->fixed;
    if (o->length > 0) n = 0;
    for (int i = 0; i < o->length; i++) n |= (uint64_t)data[i] << 8 * i;
    return n <= size - *begin ? (int64_t)n : -1;
}

void pickle_read(pickle_program *p, const uint8_t *data, size_t size)
{
    p->count = 0;
    for (size_t at = 0; at < size && p->count < PICKLE_OPS;) {
        const operation *o = find(data[at]);
        size_t begin;
        const int64_t n = o ? operand(o, data + at + 1, size - at - 1, &begin) : -1;
        if (n < 0 || n > PICKLE_OPERAND) return;
        pickle_op *op = &p->ops[p->count++];
        *op = (pickle_op){.code = data[at], .size = (uint8_t)n};
        memcpy(op->operand, data + at + 1 + begin, (size_t)n);
        at += 1 + begin + (size_t)n;
    }
}

void pickle_write(const pickle_program *p, fuzz_random *r, fuzz_bytes *out)
{
    for (int i = 0; i < p->count; i++) {
        const pickle_op *op = &p->ops[i];
        const operation *o = find(op->code);
        fuzz_put(out, &op->code, 1);
        if (o->length > 0) fuzz_le(out, fuzz_one_in(r, 4096) ? fuzz_number(r) : op->size, o->length);
        fuzz_put(out, op->operand, op->size);
    }
}

/* --- operations -------------------------------------------------------------------------------------------- */

static pickle_op make_op(uint8_t code, const void *data, size_t size)
{
    pickle_op op = {.code = code, .size = (uint8_t)(size < PICKLE_OPERAND ? size : PICKLE_OPERAND)};
    if (op.size) memcpy(op.operand, data, op.size);
    return op;
}

static void set_number(pickle_op *op, uint64_t value)
{
    for (int i = 0; i < op->size; i++) op->operand[i] = i < 8 ? (uint8_t)(value >> 8 * i) : 0;
}

/* Fills in an operand that the operation may have. */
static void fill(pickle_op *op, fuzz_random *r)
{
    const operation *o = find(op->code);
    if (o->length < 0) {
        const char *text = classes[fuzz_next(r, CLASSES)];
        *op = make_op(op->code, text, strlen(text));
    } else if (op->code == 0x8a || op->code == 0x8b) { /* LONG1, LONG4 */
        op->size = (uint8_t)fuzz_next(r, 11);
        set_number(op, fuzz_number(r));
    } else if (o->length > 0) {
        const char *text = texts[fuzz_next(r, TEXTS)];
        *op = make_op(op->code, text, strlen(text));
    } else {
        op->size = (uint8_t)o->fixed;
        set_number(op, fuzz_number(r));
    }
}

static void insert(pickle_program *p, int at, const pickle_op *op)
{
    if (p->count == PICKLE_OPS) return;
    memmove(&p->ops[at + 1], &p->ops[at], (size_t)(p->count - at) * sizeof *p->ops);
    p->ops[at] = *op;
    p->count++;
}

static void erase(pickle_program *p, int at, int n)
{
    memmove(&p->ops[at], &p->ops[at + n], (size_t)(p->count - at - n) * sizeof *p->ops);
    p->count -= n;
}

static void change(pickle_op *op, fuzz_random *r)
{
    const operation *o = find(op->code);
    if (op->size == 0 || fuzz_one_in(r, 2))
        fill(op, r);
    else if (o->length > 0)
        op->size = (uint8_t)LLVMFuzzerMutate(op->operand, op->size, PICKLE_OPERAND);
    else if (o->fixed > 0)
        LLVMFuzzerMutate(op->operand, op->size, op->size);
    else
        fill(op, r);
}

static void mutate_once(pickle_program *p, fuzz_random *r)
{
    const int at = p->count ? (int)fuzz_next(r, (uint32_t)p->count) : 0, rest = p->count - at;
    pickle_op op = {.code = operations[fuzz_next(r, OPERATIONS)].code};
    fill(&op, r);
    int with_operand = at;
    for (int i = 0; i < 8 && p->count; i++) { /* most have no operand, and those that have one matter most */
        with_operand = (int)fuzz_next(r, (uint32_t)p->count);
        if (p->ops[with_operand].size) break;
    }
    switch (p->count ? fuzz_next(r, 8) : 0) {
    case 0:
        insert(p, at, &op);
        break;
    case 1:
        erase(p, at, 1 + (int)fuzz_next(r, rest < 4 ? (uint32_t)rest : 4));
        break;
    case 2: /* repeats a sequence elsewhere */
        for (int n = 1 + (int)fuzz_next(r, rest < 24 ? (uint32_t)rest : 24), i = n - 1; i >= 0; i--) {
            pickle_op copy = p->ops[at];
            if (at + i < p->count) copy = p->ops[at + i];
            insert(p, with_operand, &copy);
        }
        break;
    case 3: {
        const int other = (int)fuzz_next(r, (uint32_t)p->count);
        const pickle_op swapped = p->ops[at];
        p->ops[at] = p->ops[other];
        p->ops[other] = swapped;
        break;
    }
    case 4:
        p->ops[at] = op;
        break;
    default:
        change(&p->ops[with_operand], r);
    }
}

void pickle_mutate(pickle_program *p, fuzz_random *r)
{
    for (uint32_t n = 1 + fuzz_next(r, fuzz_one_in(r, 4) ? 8 : 2); n > 0; n--) mutate_once(p, r);
}

/* --- a checkpoint ------------------------------------------------------------------------------------------ */

typedef struct {
    pickle_program *p;
    fuzz_random *r;
    int protocol; /* 2 or 4 */
    int memo;     /* entries */
} writer;

static void put(writer *w, uint8_t code, const void *data, size_t size)
{
    const pickle_op op = make_op(code, data, size);
    insert(w->p, w->p->count, &op);
}

static void put_code(writer *w, uint8_t code)
{
    put(w, code, NULL, 0);
}

/* Python stores nearly every object in the memo. */
static void remember(writer *w)
{
    const uint8_t index = (uint8_t)w->memo++;
    if (w->protocol >= 4)
        put_code(w, 0x94);
    else
        put(w, 'q', &index, 1);
}

static void put_string(writer *w, const char *text)
{
    put(w, w->protocol >= 4 ? 0x8c : 'X', text, strlen(text));
    remember(w);
}

static void put_integer(writer *w, uint64_t value)
{
    uint8_t data[8];
    for (int i = 0; i < 8; i++) data[i] = (uint8_t)(value >> 8 * i);
    if (value < 256)
        put(w, 'K', data, 1);
    else if (value < 65536)
        put(w, 'M', data, 2);
    else
        put(w, 0x8a, data, 8);
}

/* "module\nname\n" */
static void put_class(writer *w, const char *lines)
{
    const size_t module = strcspn(lines, "\n"), name = strlen(lines) - module - 2;
    if (w->protocol < 4) {
        put(w, 'c', lines, strlen(lines));
    } else {
        put(w, 0x8c, lines, module);
        put(w, 0x8c, lines + module + 1, name);
        put_code(w, 0x93);
    }
    remember(w);
}

static void put_tuple(writer *w, const uint64_t *values, int n)
{
    if (n > 3 || (n > 0 && fuzz_one_in(w->r, 4))) put_code(w, '(');
    const int marked = w->p->ops[w->p->count - 1].code == '(';
    for (int i = 0; i < n; i++) put_integer(w, values[i]);
    put_code(w, n == 0 ? ')' : marked ? 't' : (uint8_t)(0x84 + n));
}

typedef struct {
    int class;      /* index in classes, below STORAGE_CLASSES */
    uint64_t numel; /* elements */
} storage;

static void put_storage(writer *w, int key, const storage *s)
{
    char text[2] = {(char)('0' + key), 0};
    put_code(w, '(');
    put_string(w, "storage");
    put_class(w, classes[s->class]);
    put_string(w, text);
    put_string(w, "cpu");
    put_integer(w, s->numel);
    put_code(w, 't');
    put_code(w, 'Q');
}

/* Writes _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks): mostly within the storage. */
static void put_tensor(writer *w, int key, const storage *s)
{
    uint64_t size[9], stride[9], count = 1;
    const int rank = fuzz_one_in(w->r, 16) ? (int)fuzz_next(w->r, 10) : (int)fuzz_next(w->r, 4);
    for (int i = 0; i < rank; i++) size[i] = fuzz_one_in(w->r, 64) ? fuzz_number(w->r) : fuzz_next(w->r, 4);
    for (int i = rank - 1; i >= 0; i--) {
        stride[i] = fuzz_one_in(w->r, 12) ? fuzz_number(w->r) : count;
        count *= size[i];
    }
    if (rank >= 2 && fuzz_one_in(w->r, 4)) { /* transposed */
        const uint64_t a = size[0], b = stride[0];
        size[0] = size[1], stride[0] = stride[1];
        size[1] = a, stride[1] = b;
    }
    put_class(w, classes[10 + fuzz_one_in(w->r, 8)]);
    put_code(w, '(');
    put_storage(w, key, s);
    put_integer(w, fuzz_one_in(w->r, 4) ? fuzz_number(w->r) : 0);
    put_tuple(w, size, rank);
    put_tuple(w, stride, rank);
    put_code(w, 0x89);
    put_class(w, "collections\nOrderedDict\n");
    put_code(w, ')');
    put_code(w, 'R');
    put_code(w, 't');
    put_code(w, 'R');
    remember(w);
}

static void put_dict(writer *w)
{
    const int ordered = fuzz_one_in(w->r, 2);
    if (ordered) {
        put_class(w, "collections\nOrderedDict\n");
        put_code(w, ')');
        put_code(w, 'R');
    } else {
        put_code(w, '}');
    }
    remember(w);
}

void pickle_generate(pickle_program *p, fuzz_random *r, size_t bytes[3], int numel[3])
{
    static const char *const roots[] = {"model_ema", "model", "module", "state_dict"};
    static const char *const keys[] = {"a.weight", "b", "class_emb.weight", "fake_latent"};
    storage storages[3];
    const uint8_t protocol = fuzz_one_in(r, 2) ? 2 : 4;
    writer w = {p, r, protocol, 0};
    const uint32_t root = fuzz_next(r, 5);
    p->count = 0;
    for (int i = 0; i < 3; i++) {
        storages[i] = (storage){(int)fuzz_next(r, STORAGE_CLASSES), fuzz_next(r, 30)};
        bytes[i] = (size_t)storages[i].numel * class_bytes[storages[i].class];
        numel[i] = -1;
    }
    put(&w, 0x80, &protocol, 1);
    put_dict(&w);
    if (root < 4) {
        put_string(&w, roots[root]);
        put_dict(&w);
    }
    const uint32_t n = 1 + fuzz_next(r, 4);
    if (n > 1) put_code(&w, '(');
    for (uint32_t i = 0; i < n; i++) {
        const int key = (int)fuzz_next(r, 3);
        put_string(&w, keys[i]);
        put_tensor(&w, key, &storages[key]);
        numel[key] = (int)storages[key].numel;
    }
    put_code(&w, n > 1 ? 'u' : 's');
    if (root < 3) put_code(&w, 's');
    put_code(&w, '.');
}
