/* Computes products D = epilogue(alpha A B + beta C + bias) in f32, of matrices by columns; A may be transposed.
 * Refuses products that cuBLASLt might refuse. */
#include "cublasLt.h"
#include "fibres.h"
#include "runtime.h"

#include <memory>
#include <unistd.h>

struct cublasLtContext {
    unsigned magic;
};
struct desc_t {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transa;
    uint32_t epilogue;
    const void *bias;
};
struct layout_t {
    uint32_t type;
    uint64_t rows, cols; /* of columns that are `ld` elements apart */
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace;
    uint32_t align[4], reduction;
};
static_assert(sizeof(desc_t) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
static_assert(sizeof(layout_t) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");

static desc_t *content(cublasLtMatmulDesc_t desc)
{
    return (desc_t *)desc->data;
}
static layout_t *content(cublasLtMatrixLayout_t layout)
{
    return (layout_t *)layout->data;
}

/* The product for which an algorithm was chosen. */
struct chosen {
    uint64_t magic, workspace;
    uint32_t align[4];
    uint64_t m, n, k, types;
};
static_assert(sizeof(chosen) <= sizeof(cublasLtMatmulAlgo_t), "fits");
enum { NUMBER_SHIFT = 48 }; /* bits of `types` below the algorithm's number */
static const uint64_t algo_magic = 0x63754c744f6e4370;
static const unsigned handle_magic = 0x6c74686e;

static int offered = CUDAHOST_ALGORITHM;
static long choices, candidates;

long cudahost_choices(long *others)
{
    LOCK();
    if (others) *others = candidates;
    return choices;
}

void cudahost_algorithms(int which)
{
    LOCK();
    offered = which;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}
size_t cublasLtGetVersion()
{
    return 130000;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (runtime_injected()) return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = new cublasLtContext{handle_magic};
    runtime_count(1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    if (!handle || handle->magic != handle_magic) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    runtime_count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

/* --- descriptions ------------------------------------------------------------------------------------------------ */

static cublasStatus_t set(void *field, size_t size, const void *value, size_t bytes)
{
    if (!value || bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define SET(field) set(&(field), sizeof(field), value, bytes)

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    *content(desc) = desc_t{compute, scale, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    desc_t *desc = content(opaque);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return SET(desc->transa);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return SET(desc->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return SET(desc->bias);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}
cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type, uint64_t rows,
                                        uint64_t cols, int64_t ld)
{
    *content(layout) = layout_t{(uint32_t)type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new cublasLtMatmulPreferenceOpaque{0, {256, 256, 256, 256}, ~0u};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return SET(preference->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return SET(preference->reduction);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return SET(preference->align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return SET(preference->align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return SET(preference->align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return SET(preference->align[3]);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* --- checks ------------------------------------------------------------------------------------------------------ */

static size_t type_size(uint32_t type)
{
    return type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : type == CUDA_R_32F ? 4 : 0;
}

static bool layout_valid(const layout_t *l)
{
    return type_size(l->type) && l->rows && l->cols && l->ld >= (int64_t)l->rows;
}

static cublasStatus_t check(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                            cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout, chosen *shape)
{
    if (!desc || !a_layout || !b_layout || !c_layout || !d_layout) return CUBLAS_STATUS_INVALID_VALUE;
    const desc_t *q = content(desc);
    const layout_t *a = content(a_layout), *b = content(b_layout), *c = content(c_layout), *d = content(d_layout);
    if (!layout_valid(a) || !layout_valid(b) || !layout_valid(c) || !layout_valid(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool transposed = q->transa == CUBLAS_OP_T;
    const uint64_t m = transposed ? a->cols : a->rows, k = transposed ? a->rows : a->cols, n = b->cols;
    if (b->rows != k || d->rows != m || d->cols != n || c->type != d->type || c->rows != m || c->cols != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    /* f32 by f32 to f32, bf16 by bf16 or f16 by f16 to either; sums in f32, without less precise inputs. */
    if (q->compute != CUBLAS_COMPUTE_32F || q->scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a->type != b->type || (d->type != a->type && d->type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
    switch (q->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        break;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    *shape = chosen{
        algo_magic, 0, {}, m, n, k, a->type | d->type << 8 | (uint64_t)q->transa << 14 | (uint64_t)q->epilogue << 16};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned)
{
    *returned = 0;
    if (runtime_injected()) return CUBLAS_STATUS_ALLOC_FAILED;
    if (!handle || handle->magic != handle_magic) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (requested < 1 || !preference) return CUBLAS_STATUS_INVALID_VALUE;
    chosen shape;
    const cublasStatus_t status = check(desc, a, b, c, d, &shape);
    if (status) return status;
    /* The algorithm takes some of the workspace, and relies on the promised alignment. */
    shape.workspace = preference->workspace < 65536 ? preference->workspace : 65536;
    memcpy(shape.align, preference->align, sizeof(shape.align));
    LOCK();
    if (offered == CUDAHOST_NO_ALGORITHM) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (; *returned < requested && *returned < CUDAHOST_CANDIDATES; ++*returned) {
        cublasLtMatmulHeuristicResult_t *r = &results[*returned];
        memset(r, 0, sizeof(*r));
        memcpy(&r->algo, &shape, sizeof(shape));
        r->workspaceSize = shape.workspace;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
        shape.types += (uint64_t)1 << NUMBER_SHIFT;
    }
    choices++;
    candidates += *returned - 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- products ---------------------------------------------------------------------------------------------------- */

static float read_element(const void *p, uint32_t type, size_t i)
{
    if (type == CUDA_R_16F) return __half2float(((const __half *)p)[i]);
    return type == CUDA_R_16BF ? (float)((const __nv_bfloat16 *)p)[i] : ((const float *)p)[i];
}

/* Returns the element in row `row` of column `col`. */
static size_t element(const layout_t *l, size_t row, size_t col)
{
    return col * (size_t)l->ld + row;
}

struct product {
    desc_t desc;
    layout_t a, b, c, d;
    const void *pa, *pb, *pc;
    void *pd, *workspace;
    float alpha, beta;
    chosen shape;
};

static float epilogue(const product *p, float x)
{
    if (p->desc.epilogue & CUBLASLT_EPILOGUE_GELU)
        return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    if (p->desc.epilogue & CUBLASLT_EPILOGUE_RELU) return x > 0 ? x : 0;
    return x;
}

/* Adds a scaled column. Sanitizers skip it: it reads copies only. */
__attribute__((no_sanitize("address"), no_sanitize("undefined"))) static void
add_column(float *sum, const float *column, float factor, size_t m)
{
    for (size_t i = 0; i < m; i++) sum[i] += column[i] * factor;
}

static void multiply(const product *p)
{
    const size_t m = (size_t)p->shape.m, n = (size_t)p->shape.n, k = (size_t)p->shape.k;
    const bool bias = p->desc.epilogue & CUBLASLT_EPILOGUE_BIAS;
    std::vector<float> sum(m), column(k * m); /* columns of A, or of A^T */
    memset(p->workspace, 0xff, (size_t)p->shape.workspace);
    for (size_t l = 0; l < k; l++)
        for (size_t i = 0; i < m; i++) {
            const size_t at = p->desc.transa == CUBLAS_OP_T ? element(&p->a, l, i) : element(&p->a, i, l);
            column[l * m + i] = read_element(p->pa, p->a.type, at);
        }
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m; i++) sum[i] = 0;
        for (size_t l = 0; l < k; l++)
            add_column(sum.data(), &column[l * m], read_element(p->pb, p->b.type, element(&p->b, l, j)), m);
        for (size_t i = 0; i < m; i++) {
            float x = p->alpha * sum[i];
            if (p->beta != 0) x += p->beta * read_element(p->pc, p->c.type, element(&p->c, i, j));
            if (bias) x += read_element(p->desc.bias, p->d.type, i); /* of D's type, along its rows */
            x = epilogue(p, x);
            const size_t at = element(&p->d, i, j);
            if (p->d.type == CUDA_R_16F)
                ((__half *)p->pd)[at] = __float2half_rn(x);
            else if (p->d.type == CUDA_R_16BF)
                ((__nv_bfloat16 *)p->pd)[at] = __float2bfloat16(x);
            else
                ((float *)p->pd)[at] = x;
        }
    }
}

/* Checks that a matrix lies on the device, with the promised alignment. */
static cublasStatus_t check_matrix(const void *p, const layout_t *l, uint32_t align)
{
    const size_t elements = element(l, (size_t)l->rows, (size_t)l->cols - 1);
    if (!p || !runtime_on_device(p, elements * type_size(l->type))) return CUBLAS_STATUS_INVALID_VALUE;
    if ((uintptr_t)p % align || (uintptr_t)p % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* Whether both operands begin with numbers other than 0: a GPU multiplies zeros faster. */
static bool has_numbers(const product *p)
{
    return *(const unsigned *)p->pa != 0 && *(const unsigned *)p->pb != 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    if (runtime_injected()) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!handle || handle->magic != handle_magic) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
    chosen shape, asked;
    cublasStatus_t status = check(desc, a_layout, b_layout, c_layout, d_layout, &asked);
    if (status) return status;
    memcpy(&shape, algo ? (const void *)algo : &asked, sizeof(shape));
    for (uint32_t &align : shape.align) align = algo ? align : 16;
    LOCK();
    if (offered == CUDAHOST_BROKEN_ALGORITHM) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (offered == CUDAHOST_EXACT_ALGORITHM && shape.n != asked.n) return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint64_t number = shape.types >> NUMBER_SHIFT;
    if (shape.magic != algo_magic || shape.m != asked.m || shape.n < asked.n || shape.k != asked.k ||
        (shape.types ^ number << NUMBER_SHIFT) != asked.types)
        return CUBLAS_STATUS_INVALID_VALUE;
    shape.n = asked.n;
    if (shape.workspace > workspace_bytes ||
        (shape.workspace && !runtime_on_device(workspace, (size_t)shape.workspace)) || (uintptr_t)workspace % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    auto p = std::make_shared<product>(product{*content(desc), *content(a_layout), *content(b_layout),
                                               *content(c_layout), *content(d_layout), a, b, c, d, workspace,
                                               *(const float *)alpha, *(const float *)beta, shape});
    if ((status = check_matrix(a, &p->a, shape.align[0])) || (status = check_matrix(b, &p->b, shape.align[1])) ||
        (status = check_matrix(d, &p->d, shape.align[3])))
        return status;
    if (p->beta != 0 && (status = check_matrix(c, &p->c, shape.align[2]))) return status;
    if (c == d && p->c.ld != p->d.ld) return CUBLAS_STATUS_INVALID_VALUE;
    if (p->desc.epilogue & CUBLASLT_EPILOGUE_BIAS) {
        if (!p->desc.bias || !runtime_on_device(p->desc.bias, (size_t)shape.m * type_size(p->d.type)))
            return CUBLAS_STATUS_INVALID_VALUE;
        if ((uintptr_t)p->desc.bias % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (!runtime_is_current(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    const bool slow = offered == CUDAHOST_SLOW_ALGORITHM && number != CUDAHOST_FASTEST;
    const auto run = [p, slow] {
        if (slow && has_numbers(p.get())) usleep(2000);
        runtime_launched(), multiply(p.get());
    };
    return runtime_enqueue(stream, run) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
