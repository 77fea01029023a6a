/* The stack machine of Python's pickle, protocols 2 to 5 (opcodes: Lib/pickletools.py). The pool's limit bounds memory,
 * the pickle's length bounds time, and nothing recurses. */
#include "weights/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const uint8_t *start, *at, *end;
    wt_pool *pool;
    pk_value **stack; /* [depth]; NULL marks a MARK */
    size_t depth, stack_capacity;
    pk_value **memo; /* [memo_capacity], NULL where unset */
    size_t memo_count, memo_capacity;
    pk_value *none, *yes, *no, *empty;
    pk_value storages;   /* list of every storage made */
    const char *problem; /* why it failed; NULL so far */
    int no_memory;
} machine;

static pk_value *pickle_fail(machine *m, const char *problem)
{
    if (!m->problem) m->problem = problem;
    return NULL;
}

static void *out_of_memory(machine *m)
{
    m->no_memory = 1;
    return pickle_fail(m, "out of memory");
}

/* --- values --------------------------------------------------------------------------------------- */

static pk_value *make(machine *m, pk_kind kind)
{
    pk_value *v = wt_pool_alloc(m->pool, sizeof *v);
    if (!v) return out_of_memory(m);
    v->kind = kind;
    return v;
}

static pk_value *make_integer(machine *m, int64_t integer)
{
    pk_value *v = make(m, PK_INT);
    if (v) v->as.integer = integer;
    return v;
}

int pk_is_class(const pk_value *v, const char *name)
{
    return v->kind == PK_CLASS && strcmp(v->as.string.text, name) == 0;
}

/* Makes a value for what the callee would return. */
static pk_value *make_opaque(machine *m, const pk_value *callee)
{
    if (callee && pk_is_class(callee, "argparse.Namespace")) return make(m, PK_OPTIONS);
    pk_value *v = make(m, PK_OPAQUE);
    if (v) v->as.callee = callee && callee->kind == PK_CLASS ? callee : NULL;
    return v;
}

/* Makes a class with the name "module.name". */
static pk_value *make_class(machine *m, const char *module, size_t module_length, const char *name, size_t name_length)
{
    enum { NAME_MAX_BYTES = 1024 };
    if (module_length + name_length > NAME_MAX_BYTES) return pickle_fail(m, "a class name of more than 1024 bytes");
    pk_value *v = make(m, PK_CLASS);
    char *text = v ? wt_pool_alloc(m->pool, module_length + name_length + 2) : NULL;
    if (!text) return out_of_memory(m);
    memcpy(text, module, module_length);
    text[module_length] = '.';
    memcpy(text + module_length + 1, name, name_length);
    v->as.string.text = text;
    v->as.string.length = module_length + 1 + name_length;
    return v;
}

static int pickle_append(machine *m, pk_value *list, pk_value *item)
{
    if (list->as.list.count == list->as.list.capacity) {
        size_t capacity = list->as.list.capacity ? 2 * list->as.list.capacity : 8;
        pk_value **items = wt_pool_alloc(m->pool, capacity * sizeof *items);
        if (!items) return out_of_memory(m) != NULL;
        if (list->as.list.count) memcpy(items, list->as.list.items, list->as.list.count * sizeof *items);
        list->as.list.items = items;
        list->as.list.capacity = capacity;
    }
    list->as.list.items[list->as.list.count++] = item;
    return 1;
}

/* --- input, stack, memo --------------------------------------------------------------------------- */

static const uint8_t *pickle_take(machine *m, uint64_t n)
{
    if (n > (uint64_t)(m->end - m->at)) {
        pickle_fail(m, "it ends in the middle of an operation");
        return NULL;
    }
    const uint8_t *p = m->at;
    m->at += n;
    return p;
}

/* Takes an unsigned little-endian number of 1, 2, 4 or 8 bytes. Returns 0 at the end of the input. */
static uint64_t pickle_take_number(machine *m, int bytes)
{
    const uint8_t *p = pickle_take(m, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = 0; p && i < bytes; i++) value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static void push(machine *m, pk_value *v)
{
    if (m->problem) return;
    if (m->depth == m->stack_capacity) {
        size_t capacity = m->stack_capacity ? 2 * m->stack_capacity : 256;
        pk_value **stack = realloc(m->stack, capacity * sizeof *stack);
        if (!stack) {
            out_of_memory(m);
            return;
        }
        m->stack = stack;
        m->stack_capacity = capacity;
    }
    m->stack[m->depth++] = v;
}

static pk_value *pop(machine *m)
{
    if (m->depth == 0 || !m->stack[m->depth - 1]) return pickle_fail(m, "it takes a value from an empty stack");
    return m->stack[--m->depth];
}

static pk_value *top(machine *m)
{
    if (m->depth == 0 || !m->stack[m->depth - 1]) return pickle_fail(m, "it needs a value on an empty stack");
    return m->stack[m->depth - 1];
}

/* Removes the last mark and the values above it. Returns their number, and in *items the values, valid until the next
 * push. */
static size_t pop_mark(machine *m, pk_value ***items)
{
    size_t i = m->depth;
    while (i > 0 && m->stack[i - 1]) i--;
    if (i == 0) {
        pickle_fail(m, "it looks for a mark that is not there");
        return 0;
    }
    size_t n = m->depth - i;
    *items = m->stack + i;
    m->depth = i - 1;
    return n;
}

static void memo_put(machine *m, uint64_t index)
{
    pk_value *v = top(m);
    if (!v) return;
    /* Pickle numbers memo entries from 0, one an operation, so an index beyond the input's length is invalid. */
    if (index >= (uint64_t)(m->end - m->start)) {
        pickle_fail(m, "its memo index is out of range");
        return;
    }
    if (index >= m->memo_capacity) {
        size_t capacity = m->memo_capacity ? m->memo_capacity : 256;
        while (capacity <= index) capacity *= 2;
        pk_value **memo = realloc(m->memo, capacity * sizeof *memo);
        if (!memo) {
            out_of_memory(m);
            return;
        }
        memset(memo + m->memo_capacity, 0, (capacity - m->memo_capacity) * sizeof *memo);
        m->memo = memo;
        m->memo_capacity = capacity;
    }
    m->memo[index] = v;
    m->memo_count++;
}

static void memo_get(machine *m, uint64_t index)
{
    if (index >= m->memo_capacity || !m->memo[index])
        pickle_fail(m, "it reads a memo entry that was never written");
    else
        push(m, m->memo[index]);
}

/* --- operations ----------------------------------------------------------------------------------- */

static void push_text(machine *m, pk_kind kind, int length_bytes)
{
    uint64_t length = pickle_take_number(m, length_bytes);
    const uint8_t *text = m->problem ? NULL : pickle_take(m, length);
    pk_value *v = text ? make(m, kind) : NULL;
    if (!v) return;
    v->as.string.text = (const char *)text;
    v->as.string.length = length;
    push(m, v);
}

/* Pushes a LONG1 or LONG4: two's complement, little-endian, any length. No tensor needs a value beyond 64 bits. */
static void push_long(machine *m, int length_bytes)
{
    uint64_t length = pickle_take_number(m, length_bytes), value = 0;
    const uint8_t *p = m->problem ? NULL : pickle_take(m, length);
    if (!p) return;
    if (length > 8) {
        push(m, make_opaque(m, NULL));
        return;
    }
    for (uint64_t i = 0; i < length; i++) value |= (uint64_t)p[i] << 8 * i;
    if (length > 0 && length < 8 && p[length - 1] & 0x80) value |= UINT64_MAX << 8 * length;
    push(m, make_integer(m, (int64_t)value));
}

static void push_float(machine *m)
{
    const uint8_t *p = pickle_take(m, 8); /* the only big-endian number of the format */
    pk_value *v = p ? make(m, PK_FLOAT) : NULL;
    if (!v) return;
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&v->as.real, &bits, sizeof bits);
    push(m, v);
}

static void push_tuple(machine *m, pk_value **items, size_t count)
{
    pk_value *v = make(m, PK_TUPLE);
    pk_value **copy = v ? wt_pool_alloc(m->pool, count * sizeof *copy + 1) : NULL;
    if (!copy) {
        out_of_memory(m);
        return;
    }
    if (count) memcpy(copy, items, count * sizeof *copy);
    v->as.list.items = copy;
    v->as.list.count = v->as.list.capacity = count;
    push(m, v);
}

static void mark_to_tuple(machine *m)
{
    pk_value **items;
    size_t count = pop_mark(m, &items);
    if (!m->problem) push_tuple(m, items, count);
}

/* TUPLE1 to TUPLE3 */
static void top_to_tuple(machine *m, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (m->depth <= i || !m->stack[m->depth - 1 - i]) {
            pickle_fail(m, "it takes a value from an empty stack");
            return;
        }
    m->depth -= count;
    pk_value *items[3];
    memcpy(items, m->stack + m->depth, count * sizeof *items);
    push_tuple(m, items, count);
}

/* LIST, DICT, FROZENSET: replaces the mark and the values above it by a container. */
static void mark_to_list(machine *m, pk_kind kind)
{
    pk_value **items;
    size_t count = pop_mark(m, &items);
    pk_value *v = m->problem ? NULL : make(m, kind);
    for (size_t i = 0; v && kind != PK_OPAQUE && i < count && !m->problem; i++) pickle_append(m, v, items[i]);
    if (kind == PK_DICT && count % 2) pickle_fail(m, "a dict has a key without a value");
    push(m, v);
}

/* Appends to a list or dict. Items of other objects (PK_OPAQUE, PK_OPTIONS) are dropped. */
static void extend(machine *m, pk_kind kind, pk_value *target, pk_value **items, size_t count)
{
    if (!target || m->problem) return;
    if (kind == PK_DICT && count % 2) {
        pickle_fail(m, "a dict has a key without a value");
        return;
    }
    if (target->kind == PK_OPAQUE || target->kind == PK_OPTIONS) return;
    if (target->kind != kind) {
        pickle_fail(m, kind == PK_DICT ? "it sets items of what is no dict" : "it appends to what is no list");
        return;
    }
    for (size_t i = 0; i < count && !m->problem; i++) pickle_append(m, target, items[i]);
}

static void extend_mark(machine *m, pk_kind kind)
{
    pk_value **items;
    size_t count = pop_mark(m, &items);
    if (!m->problem) extend(m, kind, top(m), items, count);
}

static void extend_top(machine *m, pk_kind kind)
{
    pk_value *items[2];
    size_t count = kind == PK_DICT ? 2 : 1;
    for (size_t i = count; i-- > 0;) items[i] = pop(m);
    if (!m->problem) extend(m, kind, top(m), items, count);
}

static void push_global(machine *m)
{
    const uint8_t *text[2];
    size_t length[2];
    for (int i = 0; i < 2; i++) {
        const uint8_t *newline = memchr(m->at, '\n', (size_t)(m->end - m->at));
        if (!newline) {
            pickle_fail(m, "a class name does not end");
            return;
        }
        text[i] = m->at;
        length[i] = (size_t)(newline - m->at);
        m->at = newline + 1;
    }
    push(m, make_class(m, (const char *)text[0], length[0], (const char *)text[1], length[1]));
}

static void stack_global(machine *m)
{
    pk_value *name = pop(m), *module = pop(m);
    if (!name || !module) return;
    if (name->kind != PK_STRING || module->kind != PK_STRING) {
        pickle_fail(m, "a class name is no string");
        return;
    }
    push(m,
         make_class(m, module->as.string.text, module->as.string.length, name->as.string.text, name->as.string.length));
}

/* Returns 1 for a function that makes a tensor of its arguments. */
static int makes_tensor(const pk_value *v)
{
    return pk_is_class(v, "torch._utils._rebuild_tensor_v2") || pk_is_class(v, "torch._utils._rebuild_tensor_v3") ||
           pk_is_class(v, "torch._utils._rebuild_tensor");
}

/* Returns the arguments of the tensor that a call makes: its own, or those for a tensor with attributes of Python,
 * which _rebuild_from_type_v2(function, type, arguments, attributes) makes. Returns NULL for another call. */
static pk_value *tensor_args(const pk_value *callee, pk_value *args)
{
    pk_value *const *items = args->as.list.items;
    if (makes_tensor(callee)) return args;
    const int plain = pk_is_class(callee, "torch._tensor._rebuild_from_type_v2") && args->as.list.count == 4 &&
                      makes_tensor(items[0]) && pk_is_class(items[1], "torch.Tensor") && items[2]->kind == PK_TUPLE;
    return plain ? items[2] : NULL;
}

/* Makes a dict for OrderedDict() or Python 2's OrderedDict([[key, value], ...]). */
static pk_value *make_dict(machine *m, const pk_value *args)
{
    pk_value *dict = make(m, PK_DICT);
    const pk_value *pairs = args->as.list.count == 1 ? args->as.list.items[0] : NULL;
    if (!dict || !pairs || pairs->kind != PK_LIST) return dict;
    for (size_t i = 0; i < pairs->as.list.count; i++) {
        const pk_value *pair = pairs->as.list.items[i];
        if ((pair->kind != PK_LIST && pair->kind != PK_TUPLE) || pair->as.list.count != 2)
            return pickle_fail(m, "an OrderedDict is made of what are no pairs");
        if (!pickle_append(m, dict, pair->as.list.items[0]) || !pickle_append(m, dict, pair->as.list.items[1]))
            return NULL;
    }
    return dict;
}

/* REDUCE and NEWOBJ. Python would call a class or function here; this only looks up its name. */
static void call(machine *m)
{
    pk_value *args = pop(m), *callee = pop(m), *v;
    if (!args || !callee) return;
    if (args->kind != PK_TUPLE)
        v = make_opaque(m, callee);
    else if (pk_is_class(callee, "collections.OrderedDict") || pk_is_class(callee, "collections.defaultdict"))
        v = make_dict(m, args);
    else if (tensor_args(callee, args)) {
        v = make(m, PK_TENSOR);
        if (v) v->as.args = tensor_args(callee, args);
    } else if ((pk_is_class(callee, "torch._utils._rebuild_parameter") ||
                pk_is_class(callee, "torch._utils._rebuild_parameter_with_state")) &&
               args->as.list.count > 0)
        v = args->as.list.items[0];
    else if (pk_is_class(callee, "torch.storage._load_from_bytes") && args->as.list.count == 1)
        v = args->as.list.items[0];
    else
        v = make_opaque(m, callee);
    push(m, v);
}

static int is_text(const pk_value *v, const char *text)
{
    return v->kind == PK_STRING && v->as.string.length == strlen(text) &&
           memcmp(v->as.string.text, text, v->as.string.length) == 0;
}

static void push_storage(machine *m)
{
    pk_value *id = pop(m), *v = NULL;
    if (!id) return;
    int is_storage = id->kind == PK_TUPLE && id->as.list.count >= 5 && is_text(id->as.list.items[0], "storage");
    v = is_storage ? make(m, PK_STORAGE) : make_opaque(m, NULL);
    if (v && is_storage) v->as.args = id;
    if (v && is_storage && !pickle_append(m, &m->storages, v)) return;
    push(m, v);
}

/* NEWOBJ_EX: class, args, keyword args */
static void call_with_keywords(machine *m)
{
    pop(m);
    pop(m);
    pk_value *callee = pop(m);
    if (callee) push(m, make_opaque(m, callee));
}

/* Removes the top value or the top mark. */
static void pickle_drop(machine *m)
{
    if (m->depth == 0)
        pickle_fail(m, "it takes a value from an empty stack");
    else
        m->depth--;
}

/* Sets an object's attributes. Those of options are read; no tensor needs others. */
static void build(machine *m)
{
    const pk_value *state = pop(m);
    pk_value *object = top(m);
    if (state && object && object->kind == PK_OPTIONS && state->kind == PK_DICT) object->as.list = state->as.list;
}

/* Executes one operation. Returns 0 at STOP or on failure. */
static int pickle_step(machine *m)
{
    pk_value **items;
    const uint8_t *op = pickle_take(m, 1);
    if (!op) return 0;
    /* clang-format off */ /* one line per operation */
    switch (*op) {
    case 0x80: pickle_take(m, 1); break; /* PROTO */
    case 0x95: pickle_take(m, 8); break; /* FRAME: a hint for streams */
    case '.': return 0; /* STOP */
    case '(': push(m, NULL); break; /* MARK */
    case '0': pickle_drop(m); break; /* POP */
    case '1': pop_mark(m, &items); break; /* POP_MARK */
    case '2': push(m, top(m)); break; /* DUP */
    case 'N': push(m, m->none); break; /* NONE */
    case 0x88: push(m, m->yes); break; /* NEWTRUE */
    case 0x89: push(m, m->no); break; /* NEWFALSE */
    case 'J': push(m, make_integer(m, (int32_t)pickle_take_number(m, 4))); break; /* BININT */
    case 'K': push(m, make_integer(m, (int64_t)pickle_take_number(m, 1))); break; /* BININT1 */
    case 'M': push(m, make_integer(m, (int64_t)pickle_take_number(m, 2))); break; /* BININT2 */
    case 0x8a: push_long(m, 1); break; /* LONG1 */
    case 0x8b: push_long(m, 4); break; /* LONG4 */
    case 'G': push_float(m); break; /* BINFLOAT */
    case 'X': push_text(m, PK_STRING, 4); break; /* BINUNICODE */
    case 0x8c: push_text(m, PK_STRING, 1); break; /* SHORT_BINUNICODE */
    case 0x8d: push_text(m, PK_STRING, 8); break; /* BINUNICODE8 */
    case 'T': push_text(m, PK_STRING, 4); break; /* BINSTRING, Python 2's str */
    case 'U': push_text(m, PK_STRING, 1); break; /* SHORT_BINSTRING */
    case 'B': push_text(m, PK_BYTES, 4); break; /* BINBYTES */
    case 'C': push_text(m, PK_BYTES, 1); break; /* SHORT_BINBYTES */
    case 0x8e: push_text(m, PK_BYTES, 8); break; /* BINBYTES8 */
    case 0x96: push_text(m, PK_BYTES, 8); break; /* BYTEARRAY8 */
    case ')': push(m, m->empty); break; /* EMPTY_TUPLE */
    case 0x85: top_to_tuple(m, 1); break; /* TUPLE1 */
    case 0x86: top_to_tuple(m, 2); break; /* TUPLE2 */
    case 0x87: top_to_tuple(m, 3); break; /* TUPLE3 */
    case 't': mark_to_tuple(m); break; /* TUPLE */
    case ']': push(m, make(m, PK_LIST)); break; /* EMPTY_LIST */
    case 'l': mark_to_list(m, PK_LIST); break; /* LIST */
    case 'a': extend_top(m, PK_LIST); break; /* APPEND */
    case 'e': extend_mark(m, PK_LIST); break; /* APPENDS */
    case '}': push(m, make(m, PK_DICT)); break; /* EMPTY_DICT */
    case 'd': mark_to_list(m, PK_DICT); break; /* DICT */
    case 's': extend_top(m, PK_DICT); break; /* SETITEM */
    case 'u': extend_mark(m, PK_DICT); break; /* SETITEMS */
    case 0x8f: push(m, make_opaque(m, NULL)); break; /* EMPTY_SET */
    case 0x90: extend_mark(m, PK_LIST); break; /* ADDITEMS */
    case 0x91: mark_to_list(m, PK_OPAQUE); break; /* FROZENSET */
    case 'c': push_global(m); break; /* GLOBAL */
    case 0x93: stack_global(m); break; /* STACK_GLOBAL */
    case 'R': call(m); break; /* REDUCE */
    case 0x81: call(m); break; /* NEWOBJ */
    case 0x92: call_with_keywords(m); break; /* NEWOBJ_EX */
    case 'b': build(m); break; /* BUILD */
    case 'Q': push_storage(m); break; /* BINPERSID */
    case 'q': memo_put(m, pickle_take_number(m, 1)); break; /* BINPUT */
    case 'r': memo_put(m, pickle_take_number(m, 4)); break; /* LONG_BINPUT */
    case 0x94: memo_put(m, m->memo_count); break; /* MEMOIZE */
    case 'h': memo_get(m, pickle_take_number(m, 1)); break; /* BINGET */
    case 'j': memo_get(m, pickle_take_number(m, 4)); break; /* LONG_BINGET */
    default: pickle_fail(m, "an operation that PyTorch files do not use");
    }
    /* clang-format on */
    return m->problem == NULL;
}

mar_status pk_parse(const char *path, const uint8_t *data, size_t size, wt_pool *pool, pk_pickle *out, mar_err *err)
{
    machine m = {.start = data, .at = data, .end = data + size, .pool = pool, .storages = {.kind = PK_LIST}};
    m.none = make(&m, PK_NONE);
    m.yes = make(&m, PK_BOOL);
    m.no = make(&m, PK_BOOL);
    m.empty = make(&m, PK_TUPLE);
    if (m.yes) m.yes->as.integer = 1;
    const uint8_t *at = data;
    if (!m.problem)
        while (pickle_step(&m)) at = m.at;
    *out = (pk_pickle){.root = m.problem ? NULL : pop(&m),
                       .storages = m.storages.as.list.items,
                       .n_storages = m.storages.as.list.count,
                       .size = (size_t)(m.at - data)};
    free(m.stack);
    free(m.memo);
    if (m.no_memory) return err_set(err, MAR_ENOMEM, "%s: its pickle takes more than the memory allowed", path);
    if (m.problem) return err_set(err, MAR_EFORMAT, "%s: malformed pickle at byte %td: %s", path, at - data, m.problem);
    return MAR_OK;
}

/* --- looking at values ---------------------------------------------------------------------------- */

const pk_value *pk_get(const pk_value *dict, const char *key)
{
    if (dict->kind != PK_DICT && dict->kind != PK_OPTIONS) return NULL;
    for (size_t i = dict->as.list.count; i >= 2; i -= 2)
        if (is_text(dict->as.list.items[i - 2], key)) return dict->as.list.items[i - 1];
    return NULL;
}

const char *pk_describe(const pk_value *v, char *buffer, size_t size)
{
    static const char *const names[] = {
        [PK_NONE] = "None",
        [PK_BOOL] = "a bool",
        [PK_INT] = "an integer",
        [PK_FLOAT] = "a float",
        [PK_STRING] = "a string",
        [PK_BYTES] = "bytes",
        [PK_TUPLE] = "a tuple",
        [PK_LIST] = "a list",
        [PK_DICT] = "a dict",
        [PK_CLASS] = "a class",
        [PK_STORAGE] = "a bare storage",
        [PK_TENSOR] = "a tensor",
        [PK_OPAQUE] = "an object",
        [PK_OPTIONS] = "an object made by argparse.Namespace",
    };
    const pk_value *named = v->kind == PK_OPAQUE ? v->as.callee : v->kind == PK_CLASS ? v : NULL;
    if (named)
        snprintf(buffer, size, "%s %s", v->kind == PK_CLASS ? "the class" : "an object made by", named->as.string.text);
    else
        snprintf(buffer, size, "%s", names[v->kind]);
    return buffer;
}

const char *pk_type(const pk_value *v, char *buffer, size_t size)
{
    static const char *const names[] = {[PK_NONE] = "None",
                                        [PK_BOOL] = "bool",
                                        [PK_INT] = "int",
                                        [PK_FLOAT] = "float",
                                        [PK_STRING] = "str",
                                        [PK_BYTES] = "bytes",
                                        [PK_TUPLE] = "tuple",
                                        [PK_LIST] = "list",
                                        [PK_DICT] = "dict",
                                        [PK_CLASS] = "class",
                                        [PK_STORAGE] = "bare storage",
                                        [PK_TENSOR] = "tensor",
                                        [PK_OPAQUE] = "object",
                                        [PK_OPTIONS] = "argparse.Namespace"};
    static const char *const makers[][2] = {{"_codecs.encode", "bytes"},
                                            {"torch._utils._rebuild_meta_tensor_no_storage", "meta tensor"},
                                            {"torch._utils._rebuild_sparse_tensor", "sparse tensor"},
                                            {"torch._utils._rebuild_qtensor", "quantized tensor"}};
    const pk_value *maker = v->kind == PK_OPAQUE ? v->as.callee : NULL;
    const char *name = maker ? maker->as.string.text : names[v->kind];
    for (size_t i = 0; maker && i < sizeof makers / sizeof *makers; i++)
        if (pk_is_class(maker, makers[i][0])) name = makers[i][1];
    snprintf(buffer, size, "%s", name);
    return buffer;
}
