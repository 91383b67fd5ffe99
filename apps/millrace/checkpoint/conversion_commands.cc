#include "apps/millrace/checkpoint/conversion_commands.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "apps/common/flag_checks.h"
#include "apps/common/output.h"
#include "apps/millrace/checkpoint/merged_outputs.h"
#include "apps/millrace/cli/share_flag.h"
#include "millrace/base/config.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/huggingface/adapter_merge.h"
#include "millrace/checkpoint/convert/huggingface/hf_tokenizer.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/open_source.h"
#include "millrace/checkpoint/convert/quantized_model.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::cli::ckpt {
namespace {

using checkpoint::Manifest;
using checkpoint::Reader;

/// Returns the format that the user named; else the one that the destination's suffix suggests.
Result<checkpoint::ForeignFormat> ExportFormat(const Arguments& arguments) {
  if (!arguments.format.empty()) return checkpoint::ParseForeignFormat(arguments.format);
  const std::string& to = arguments.destination;
  if (to.ends_with(".gguf")) return checkpoint::ForeignFormat::kGguf;
  const bool file = to.ends_with(".pt") || to.ends_with(".pth") || to.ends_with(".bin") || to.ends_with(".ckpt");
  return file ? checkpoint::ForeignFormat::kTorch : checkpoint::ForeignFormat::kHuggingFace;
}

/// Returns the files of the tokenizer that the run was trained with. A model is useful without them, so errors are only
/// logged.
std::map<std::string, std::string> TokenizerFiles(const Context& context, object::Connection& connection,
                                                  const Manifest& manifest) {
  const auto origin = checkpoint::FindTokenizerOrigin(manifest);
  if (!origin) return {};
  const auto get = [&]() -> Result<std::map<std::string, std::string>> {
    const auto tokenizer = MR_TRY(tokenizer::OpenTokenizer(connection, origin->url, context.log(), CallOf(context)));
    if (tokenizer->fingerprint() != origin->fingerprint) {
      return Fail(Code::kPreconditionFailed,
                  "{} is not the tokenizer any more that the run was trained with; put that file back", origin->url);
    }
    return checkpoint::TokenizerFilesAt(connection, origin->url, context.log(), CallOf(context));
  };
  auto files = get();
  if (files) return *std::move(files);
  context.log().Warning("the model is exported without its tokenizer", {{"error", files.error()}});
  return {};
}

/// Files beside a model's weights that are not its tokenizer's: how it generates, how inputs are prepared, licences.
constexpr std::string_view kCarriedFiles[] = {checkpoint::kGenerationConfigFile,
                                              "preprocessor_config.json",
                                              "processor_config.json",
                                              "LICENSE",
                                              "LICENSE.md",
                                              "LICENSE.txt",
                                              "NOTICE",
                                              "README.md",
                                              "USE_POLICY.md"};

/// Adds the kCarriedFiles of a model that `files` does not have.
Status AddCarriedFiles(const Context& context, const checkpoint::ModelSource& source,
                       std::map<std::string, std::string>& files) {
  constexpr std::uint64_t kMaxBytes = 1 * kMiB;  // a guess: licences have some kilobytes
  for (const std::string_view file : kCarriedFiles) {
    auto text = MR_TRY(source.File(file, kMaxBytes, CallOf(context)));
    if (text) files.emplace(file, *std::move(text));
  }
  return {};
}

/// Adds the files of the model that a run began with. A tuned model is useful without them, so errors are only logged.
void AddFilesOfOrigin(const Context& context, object::Connection& connection, const Manifest& manifest,
                      std::map<std::string, std::string>& files) {
  const Json* job = JsonFind(manifest.meta, "job");
  if (job == nullptr || !job->is_string()) return;
  const auto document = config::Document::Parse(job->get_ref<const std::string&>(), "the run's job file");
  const std::string from = document ? document->Root()["model"]["from"].String().value_or("") : "";
  if (from.empty()) return;
  const auto add = [&]() -> Status {
    const auto model =
        MR_TRY(checkpoint::ModelSource::Open(connection, from, std::nullopt, context.log(), CallOf(context)));
    return AddCarriedFiles(context, model, files);
  };
  if (const Status added = add(); !added) {
    context.log().Warning("the model is exported without the licence and other files of its model.from",
                          {{"error", added.error()}});
  }
}

/// Returns the files beside a model's weights: its tokenizer, which is the run's or came with a folder, and those of
/// kCarriedFiles.
Result<std::map<std::string, std::string>> ModelFiles(const Context& context, object::Connection& connection,
                                                      const checkpoint::ModelSource& source, const std::string& url) {
  std::map<std::string, std::string> files;
  if (source.step()) {
    files = TokenizerFiles(context, connection, source.reader().manifest());
  } else if (auto found = checkpoint::TokenizerFilesAt(connection, url, context.log(), CallOf(context)); found) {
    files = *std::move(found);
  } else {
    context.log().Warning("the model is written without a tokenizer", {{"error", found.error()}});
  }
  MR_TRY(AddCarriedFiles(context, source, files));
  if (source.step()) AddFilesOfOrigin(context, connection, source.reader().manifest(), files);
  return files;
}

Result<std::optional<engine::Quantization>> QuantizationArgument(const Arguments& arguments) {
  if (arguments.quantize.empty()) return std::optional<engine::Quantization>();
  const auto kind = engine::ParseQuantization(arguments.quantize);
  if (!kind) return Fail(Code::kInvalidArgument, "--quantize {}: {}", arguments.quantize, engine::kQuantizationNames);
  return kind;
}

Status Export(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  checkpoint::ExportOptions options{.format = MR_TRY(ExportFormat(arguments)), .group = arguments.group};
  if (arguments.file_bytes > 0) options.file_bytes = arguments.file_bytes;
  options.quantization = MR_TRY(QuantizationArgument(arguments));
  if (!arguments.type.empty()) {
    if (options.format != checkpoint::ForeignFormat::kGguf)
      return Fail(Code::kInvalidArgument, "--type is for gguf, not for {}", ForeignFormatName(options.format));
    options.gguf_type = MR_TRY(checkpoint::ParseGgmlType(arguments.type));
  }
  const auto source =
      MR_TRY(checkpoint::ModelSource::Open(*connection, arguments.url, arguments.step, context.log(), CallOf(context)));
  if (context.globals.dry_run) {
    Print("would export {} to {} as {}\n", source.name(), arguments.destination, ForeignFormatName(options.format));
    return {};
  }
  object::Location to = MR_TRY(object::Locate(*connection, arguments.destination));
  MemoryBudget budget(context.DataBudget());
  Reader& reader = source.reader();
  if (options.format == checkpoint::ForeignFormat::kHuggingFace || options.format == checkpoint::ForeignFormat::kGguf)
    options.files = MR_TRY(ModelFiles(context, *connection, source, arguments.url));
  std::optional<ProgressBar> bar(std::in_place, context, checkpoint::ExportBytes(reader.manifest(), options));
  auto exported = MR_TRY(checkpoint::Export(reader, to, budget, options, CallOf(context), bar->progress()));
  bar.reset();
  if (context.globals.json) {
    PrintJsonLine({{"event", "exported"},
                   {"step", reader.manifest().step},
                   {"format", ForeignFormatName(options.format)},
                   {"destination", arguments.destination},
                   {"tensors", exported.tensors},
                   {"files", exported.files},
                   {"bytes", exported.bytes},
                   {"notes", exported.notes}});
  } else {
    Print("{} -> {} ({}): {} tensors, {} in {} file{}\n", reader.name(), arguments.destination,
          ForeignFormatName(options.format), exported.tensors, FormatBytes(exported.bytes), exported.files,
          exported.files == 1 ? "" : "s");
    for (const std::string& note : exported.notes) Print("note: {}\n", note);
  }
  return {};
}

/// Returns the files of the run that made the adapter, else the base's.
Result<std::map<std::string, std::string>> MergedFiles(const Context& context, object::Connection& connection,
                                                       const checkpoint::ModelSource& adapter,
                                                       const checkpoint::ModelSource& base,
                                                       const std::string& base_url) {
  auto files = TokenizerFiles(context, connection, adapter.reader().manifest());
  if (files.empty()) files = MR_TRY(ModelFiles(context, connection, base, base_url));
  if (adapter.step()) MR_TRY(AddCarriedFiles(context, adapter, files));
  MR_TRY(AddCarriedFiles(context, base, files));
  return files;
}

/// Returns how the base of an adapter was quantized while the adapter was trained: what the user says, else what the
/// run wrote down.
Result<std::optional<engine::Quantization>> BaseQuantization(const Arguments& arguments,
                                                             const checkpoint::ModelSource& adapter) {
  if (const auto kind = MR_TRY(QuantizationArgument(arguments))) return kind;
  return checkpoint::QuantizedWhileTraining(adapter.reader().manifest());
}

/// Prints how far a merge moved the weights. If the elements of a layer's input are independent, its output moves as
/// far.
void PrintDistance(engine::Quantization kind, const checkpoint::MergeDistance& distance) {
  const auto share = [](double part, double of) { return of > 0 ? 100 * std::sqrt(part / of) : 0.0; };
  Print("the base was quantized to {} as in training, which changes its weights by {:.2g} % of their norm\n",
        QuantizationName(kind), share(distance.quantized, distance.base));
  Print("the adapter changes them by {:.2g} %, and rounding the sums by {:.2g} %\n",
        share(distance.update, distance.base), share(distance.rounded, distance.base));
}

/// Returns the URL of the model that an adapter changes: what the user says, else what its configuration names.
Result<std::string> BaseUrl(const Arguments& arguments, const checkpoint::ModelSource& adapter, const Json& config) {
  if (!arguments.other.empty()) return arguments.other;
  const Json* base = JsonFind(config, "base_model_name_or_path");
  if (base != nullptr && base->is_string() && !base->get_ref<const std::string&>().empty()) {
    return base->get<std::string>();
  }
  return Fail(Code::kInvalidArgument, "{} does not say which model it adapts; name it with --base", adapter.name());
}

/// The results of a merge.
struct MergeReport {
  std::string adapter, base, destination;
  std::size_t changed = 0;  ///< tensors
  checkpoint::ExportResult exported = {};
  std::optional<engine::Quantization> kind = {};  ///< of the base while the adapter was trained
  checkpoint::MergeDistance distance = {};        ///< with `kind`
  std::optional<Result<Json>> outputs = {};       ///< with `kind`, unless the user skips the measurement

  /// Returns why the outputs were not measured; empty: they were.
  std::string unmeasured() const {
    if (!outputs) return "--no-outputs was given";
    return *outputs ? "" : std::string(outputs->error().message());
  }
};

Json MergeJson(const MergeReport& report) {
  Json line{{"event", "merged"},
            {"adapter", report.adapter},
            {"base", report.base},
            {"destination", report.destination},
            {"changed", report.changed},
            {"tensors", report.exported.tensors},
            {"files", report.exported.files},
            {"bytes", report.exported.bytes}};
  if (!report.kind) return line;
  const std::string unmeasured = report.unmeasured();
  line["quantized"] = QuantizationName(*report.kind);
  line["squares"] = {{"base", report.distance.base},
                     {"update", report.distance.update},
                     {"quantized", report.distance.quantized},
                     {"rounded", report.distance.rounded}};
  line["outputs"] = unmeasured.empty() ? **report.outputs : Json(nullptr);
  if (!unmeasured.empty()) line["outputs_not_measured"] = unmeasured;
  return line;
}

void PrintMerge(const MergeReport& report) {
  Print("{} + {} -> {}: {} of {} tensors changed, {} in {} file{}\n", report.base, report.adapter, report.destination,
        report.changed, report.exported.tensors, FormatBytes(report.exported.bytes), report.exported.files,
        report.exported.files == 1 ? "" : "s");
  if (!report.kind) return;
  PrintDistance(*report.kind, report.distance);
  if (const std::string unmeasured = report.unmeasured(); unmeasured.empty()) {
    Print("{}", OutputsText(**report.outputs));
  } else {
    Print("what the merge does to the model's outputs was not measured: {}\n", unmeasured);
  }
}

Status Merge(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  const auto adapter =
      MR_TRY(checkpoint::ModelSource::Open(*connection, arguments.url, arguments.step, context.log(), CallOf(context)));
  const auto config = MR_TRY(adapter.AdapterConfig(CallOf(context)));
  if (!config)
    return Fail(
        Code::kNotFound,
        "{} is no adapter: it has no adapter_config.json; name the checkpoint of a LoRA run, or a folder of PEFT",
        adapter.name());
  const std::string from = MR_TRY(BaseUrl(arguments, adapter, *config));
  const auto base =
      MR_TRY(checkpoint::ModelSource::Open(*connection, from, std::nullopt, context.log(), CallOf(context)));
  const auto kind = MR_TRY(BaseQuantization(arguments, adapter));
  MemoryBudget budget(context.DataBudget());
  std::shared_ptr<const engine::QuantizedWeights> codes;
  if (kind) {
    const auto cache = MR_TRY(checkpoint::DefaultQuantizedFolder());
    codes =
        MR_TRY(checkpoint::OpenQuantizedModel(*connection, base, *kind, cache, budget, context.log(), CallOf(context)))
            .weights;
  }
  const auto merge =
      MR_TRY(checkpoint::AdapterMerge::Open(adapter.reader(), *config, base.reader(), codes, CallOf(context)));
  if (context.globals.dry_run) {
    Print("would merge {} into {} as {}: {} weights change\n", adapter.name(), base.name(), arguments.destination,
          merge.tensors());
    return {};
  }
  MergeReport report{.adapter = adapter.name(),
                     .base = base.name(),
                     .destination = arguments.destination,
                     .changed = merge.tensors(),
                     .kind = kind};
  checkpoint::ExportOptions options{
      .change = [&](const std::string& tensor, std::uint64_t first, MutableByteSpan elements) {
        merge.Apply(tensor, first, elements, &report.distance);
      }};
  if (arguments.file_bytes > 0) options.file_bytes = arguments.file_bytes;
  options.files = MR_TRY(MergedFiles(context, *connection, adapter, base, from));
  const object::Location to = MR_TRY(object::Locate(*connection, arguments.destination));
  std::optional<ProgressBar> bar(std::in_place, context, checkpoint::ExportBytes(base.reader().manifest(), options));
  report.exported = MR_TRY(checkpoint::Export(base.reader(), to, budget, options, CallOf(context), bar->progress()));
  bar.reset();
  if (kind && !arguments.skips_outputs) {
    report.outputs = MeasureOutputs(context, {.adapter = adapter,
                                              .adapter_url = arguments.url,
                                              .base_url = from,
                                              .merged_url = arguments.destination,
                                              .quantization = *kind});
  }
  if (context.globals.json) {
    PrintJsonLine(MergeJson(report));
  } else {
    PrintMerge(report);
  }
  return {};
}

/// Imports a share. Returns the checkpoint if this share committed it or found it; else prints what the share did.
Result<std::optional<Manifest>> ImportOwnShare(const Context& context, const Arguments& arguments,
                                               object::Connection& connection, checkpoint::ImportSource source,
                                               MemoryBudget& budget, const checkpoint::ImportOptions& options) {
  std::optional<ProgressBar> bar(std::in_place, context, MR_TRY(checkpoint::ImportBytes(source, options)));
  auto done = MR_TRY(checkpoint::ImportShare(connection, std::move(source), arguments.url, budget, options,
                                             context.log(), CallOf(context), bar->progress()));
  bar.reset();
  if (done.manifest) return std::move(done.manifest);
  if (context.globals.json) {
    PrintJsonLine({{"event", "share_imported"},
                   {"step", options.step},
                   {"files", done.files},
                   {"own_files", done.own_files},
                   {"resumed", done.resumed}});
  } else if (!context.globals.quiet) {
    Print("share {} of {}: {} of {} files of step {} are written; the first share commits it\n", options.share.index,
          options.share.count, done.own_files, done.files, options.step);
  }
  return std::optional<Manifest>();
}

Status Import(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  const auto format =
      MR_TRY(arguments.format.empty() ? checkpoint::DetectForeignFormat(*connection, arguments.source, CallOf(context))
                                      : checkpoint::ParseForeignFormat(arguments.format));
  checkpoint::SourceOptions known;
  if (!arguments.config.empty()) {
    if (format == checkpoint::ForeignFormat::kHuggingFace || format == checkpoint::ForeignFormat::kPeft) {
      return Fail(Code::kInvalidArgument, "--config is not for {}: its folder has the model's configuration",
                  ForeignFormatName(format));
    }
    known.config = MR_TRY(checkpoint::ReadModelConfig(*connection, arguments.config, CallOf(context)));
  }
  auto source = MR_TRY(checkpoint::OpenSource(*connection, arguments.source, format, CallOf(context), known));
  checkpoint::ImportOptions options{.step = arguments.step.value_or(source.step.value_or(0)), .group = arguments.group};
  if (!options.group.empty() && !options.group.ends_with('/')) options.group += '/';
  if (arguments.file_bytes > 0) options.file_bytes = arguments.file_bytes;
  options.share = MR_TRY(ReadShare(arguments.share));
  const std::uint64_t left_out = source.left_out, bytes = source.TensorBytes();
  const std::vector<std::string> notes = source.notes;
  if (context.globals.dry_run) {
    Print("would import {} ({}: {} tensors, {}) as step {} of {}\n", arguments.source, ForeignFormatName(format),
          source.tensors.size(), FormatBytes(bytes), options.step, arguments.url);
    return {};
  }
  MemoryBudget budget(context.DataBudget());
  std::optional<Manifest> committed;
  if (options.share.is_all()) {
    std::optional<ProgressBar> bar(std::in_place, context, bytes);
    committed = MR_TRY(checkpoint::Import(*connection, std::move(source), arguments.url, budget, options,
                                          CallOf(context), bar->progress()));
  } else {
    committed = MR_TRY(ImportOwnShare(context, arguments, *connection, std::move(source), budget, options));
    if (!committed) return {};
  }
  const Manifest& manifest = *committed;
  if (context.globals.json) {
    PrintJsonLine({{"event", "imported"},
                   {"step", options.step},
                   {"format", ForeignFormatName(format)},
                   {"source", arguments.source},
                   {"tensors", manifest.tensors.size()},
                   {"left_out", left_out},
                   {"notes", notes},
                   {"bytes", manifest.FileBytes()}});
    return {};
  }
  Print("{} ({}) -> step {} of {}: {} tensors, {}\n", arguments.source, ForeignFormatName(format), options.step,
        arguments.url, manifest.tensors.size(), FormatBytes(manifest.FileBytes()));
  if (left_out > 0) {
    Print("left out {} tensor{} that the model's code computes by itself or ties to others\n", left_out,
          left_out == 1 ? "" : "s");
  }
  for (const std::string& note : notes) Print("note: {}\n", note);
  return {};
}

}  // namespace

void AddConversions(CLI::App& ckpt, Context& context, const std::shared_ptr<Arguments>& arguments) {
  const auto written = OneOf({"hf", "peft", "torch", "dcp", "gguf"});
  const auto read = OneOf({"hf", "peft", "torch", "dcp", "megatron", "deepspeed", "gguf"});
  CLI::App* to = AddAction(
      ckpt, context, arguments, "export",
      "Write a checkpoint for other programs: Hugging Face, PEFT, torch.load, DCP, GGUF",
      "  millrace ckpt export s3://runs/llama-demo ./llama-demo\n"
      "  millrace ckpt export s3://runs/llama-demo ./llama-demo --file-size 2GB\n"
      "  millrace ckpt export s3://runs/llama-demo ./model.pt --group model\n"
      "  millrace ckpt export s3://runs/llama-demo s3://runs/llama-dcp --to dcp\n"
      "  millrace ckpt export s3://models/llama-2-7b s3://models/llama-2-7b-nf4 --quantize nf4\n"
      "  millrace ckpt export s3://runs/llama-demo ./llama-demo.gguf --type q8_0\n"
      "  python -c 'from transformers import AutoModelForCausalLM as M; M.from_pretrained(\"./llama-demo\")'\n",
      &Export, {&Arguments::url, &Arguments::destination});
  AddStep(to, arguments, "Which checkpoint (default: the newest)");
  to->add_option("--to", arguments->format,
                 "hf (folder), peft (folder), torch (file), dcp (folder), gguf (file); default: torch for *.pt *.pth "
                 "*.bin *.ckpt, gguf for *.gguf, else hf")
      ->check(written);
  to->add_option("--type", arguments->type,
                 "gguf: matrices are f32, f16, bf16, q8_0 or q4_0 (default: as in the checkpoint)")
      ->check(OneOf({"f32", "f16", "bf16", "q8_0", "q4_0"}));
  to->add_option("--group", arguments->group, "torch and dcp: only what lies below this path, such as model");
  const auto add_file_size = [&](CLI::App* command, const char* usual = "5GB") {
    command->add_option_function<std::string>(
        "--file-size",
        [arguments](const std::string& text) {
          auto bytes = ParseBytes(text);
          if (!bytes || *bytes == 0) throw CLI::ValidationError("--file-size", "\"" + text + "\" is no size; try 5GB");
          arguments->file_bytes = *bytes;
        },
        fmt::format("Begin another file of weights after so many bytes (default: {})", usual));
  };
  add_file_size(to);
  const auto kinds = OneOf({"nf4", "int8", "fp8"});
  to->add_option("--quantize", arguments->quantize,
                 "hf only: write the matrices of blocks in 4 or 8 bits: nf4, int8 (as bitsandbytes) or fp8 (as vLLM)")
      ->check(kinds);
  CLI::App* merge = AddAction(ckpt, context, arguments, "merge",
                              "Add an adapter (LoRA) to its model, and write the result as a Hugging Face folder",
                              "  millrace ckpt merge s3://runs/tuned ./tuned-model\n"
                              "  millrace ckpt merge ./peft-adapter s3://models/tuned --base s3://models/llama-2-7b\n",
                              &Merge, {&Arguments::url, &Arguments::destination});
  AddStep(merge, arguments, "Which checkpoint of the adapter (default: the newest)");
  merge->add_option("--base", arguments->other, "The model (default: what the adapter says that it adapts)");
  merge
      ->add_option(
          "--quantize", arguments->quantize,
          "How the model was quantized while the adapter was trained: nf4, int8 or fp8 (default: what the adapter's "
          "run wrote down)")
      ->check(kinds);
  merge->add_flag("--no-outputs", arguments->skips_outputs,
                  "Of a model of 4 or 8 bits: do not measure what the merge does to its outputs");
  add_file_size(merge);
  CLI::App* from = AddAction(ckpt, context, arguments, "import",
                             "Make a checkpoint of what others saved: Hugging Face, PEFT, torch.save, DCP, Megatron, "
                             "DeepSpeed, GGUF",
                             "  millrace ckpt import ./Llama-2-7b-hf s3://runs/llama-2-7b\n"
                             "  millrace ckpt import ./lora-adapter s3://runs/lora\n"
                             "  millrace ckpt import ./checkpoint.pt s3://runs/old --step 1000\n"
                             "  millrace ckpt import s3://runs/dcp/step-1000 s3://runs/new --step 1000\n"
                             "  millrace ckpt import ./fsdp-run/step-900 s3://runs/new --config ./config.json\n"
                             "  millrace ckpt import ./megatron-run s3://runs/new\n"
                             "  millrace ckpt import ./deepspeed-run s3://runs/new --config ./config.json\n"
                             "  millrace ckpt import ./llama-2-7b.Q8_0.gguf s3://runs/llama-2-7b\n"
                             "  millrace ckpt import s3://models/big s3://runs/big --share 0/2   # and 1/2 elsewhere\n"
                             "No pickle is run: only tensors and plain values are read from one.\n",
                             &Import, {&Arguments::source, &Arguments::url});
  AddStep(from, arguments, "The checkpoint's step (default: that of Megatron's or DeepSpeed's files, else 0)");
  from->add_option("--from", arguments->format,
                   "hf, peft, torch, dcp, megatron, deepspeed or gguf (default: by the names of the files)")
      ->check(read);
  from->add_option("--config", arguments->config,
                   "The model's Hugging Face config.json (default: from the files of hf, peft, megatron, deepspeed and "
                   "gguf; without it, torch and dcp keep the names of the state)");
  from->add_option("--group", arguments->group, "Put this path in front of every name, such as model");
  add_file_size(from, "4GiB");
  AddShareFlag(*from, arguments->share);
}

}  // namespace millrace::cli::ckpt
