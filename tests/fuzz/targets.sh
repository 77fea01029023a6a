# Sourced: the fuzz targets, and the settings of each.

fuzz_targets="safetensors pytorch npz images metadata folder options classes prompts spiece tokenizer merges words caption request run"

# `fuzz_runs TARGET`: executions of about a minute on one core; test.sh makes a quarter of them.
fuzz_runs() {
    case $1 in
    npz) echo 250000 ;;
    metadata) echo 500000 ;;
    options) echo 1100000 ;;
    folder) echo 300000 ;;
    spiece) echo 400000 ;;
    tokenizer) echo 350000 ;;
    merges) echo 400000 ;;
    caption) echo 10000 ;;
    prompts) echo 250000 ;;
    run) echo 150000 ;;
    *) echo 1500000 ;;
    esac
}

# `fuzz_length TARGET`: size of the largest input in bytes.
fuzz_length() {
    case $1 in
    safetensors | pytorch | npz | spiece | tokenizer | run) echo 4096 ;;
    images) echo 1024 ;;
    metadata) echo 256 ;;
    *) echo 400 ;;
    esac
}

# `fuzz_sources TARGET`: the files whose coverage the target measures.
fuzz_sources() {
    case $1 in
    safetensors) echo weights/safetensors.c weights/table.c weights/hash.c weights/save.c weights/convert.c weights/scales.c ;;
    npz) echo weights/npy.c weights/npz_read.c weights/npz_write.c weights/zip.c weights/zip_stream.c ;;
    images) echo tools/images/image.c tools/images/png_chunks.c tools/images/png_read.c tools/images/jpeg.c tools/images/webp.c tools/images/kind.c ;;
    pytorch) echo weights/pytorch.c weights/legacy.c weights/zip.c weights/pickle.c ;;
    metadata) echo families/mar.c families/spherear.c vae/config.c vae/vit_config.c vae/detok_config.c mar/api/inspect.c weights/shape.c ;;
    folder) echo weights/folder.c base/json.c families/language.c text/vocabulary.c ;;
    options) echo tools/cli/options.c mar/core/option.c mar/core/params.c mar/core/params_read.c mar/core/handle_options.c tools/cli/suggest.c ;;
    classes) echo tools/generate/classes.c tools/generate/class_names.c tools/generate/class_table.c ;;
    prompts) echo tools/generate/prompts.c tools/generate/prompt_form.c base/json.c ;;
    spiece) echo text/protobuf.c text/charsmap.c text/trie.c text/unigram.c text/unigram_encode.c ;;
    tokenizer) echo text/json_read.c text/steps_json.c text/steps.c text/pattern.c text/bpe.c text/bpe_build.c text/bpe_encode.c ;;
    merges) echo text/bpe.c text/bpe_build.c text/bpe_encode.c text/tiktoken.c ;;
    words) echo text/words.c text/trie.c ;;
    caption) echo text/clean.c text/entities.c text/pattern.c ;;
    request) echo base/json.c tools/serve/request.c tools/serve/form.c tools/serve/answer.c ;;
    run) echo tools/store/store.c tools/eval/settings.c tools/eval/batch.c tools/eval/merge.c tools/eval/ranges.c tools/eval/pictures.c tools/eval/result.c ;;
    esac
}

# `fuzz_run TARGET PREFIX [ARGUMENT...]`: runs the target. More than 512 MB an input or 64 MB an allocation is a
# finding. The caller sets the limit of time, -timeout. Failing inputs are written to PREFIX<kind>-<hash>.
fuzz_run() {
    fuzz_target=$1 fuzz_prefix=$2
    shift 2
    "build/fuzz/tests/fuzz/fuzz_$fuzz_target" -max_len="$(fuzz_length "$fuzz_target")" -rss_limit_mb=512 \
        -malloc_limit_mb=64 -print_final_stats=1 -artifact_prefix="$fuzz_prefix" "$@"
}

# `fuzz_stat NAME LOG`: a number that libFuzzer printed at its end.
fuzz_stat() {
    sed -n "s/^stat::$1: *//p" "$2" | tail -n 1
}

# `fuzz_llvm NAME [ARGUMENT...]`: runs llvm-cov or llvm-profdata of clang's version.
fuzz_llvm() {
    fuzz_tool=$(clang -print-prog-name="$1")
    shift
    "$fuzz_tool" "$@"
}

# `fuzz_can_cover`: succeeds if coverage can be measured; else says why not.
fuzz_can_cover() {
    for fuzz_tool in llvm-profdata llvm-cov; do
        command -v "$(clang -print-prog-name=$fuzz_tool)" >/dev/null || {
            echo "no $fuzz_tool for clang, which coverage needs; on Debian: apt-get install llvm" >&2
            return 1
        }
    done
}
