// millrace ckpt: lists, shows, verifies, compares, pins, removes, imports, exports and merges checkpoints.
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/progress.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/huggingface/adapter_merge.h"
#include "millrace/checkpoint/convert/huggingface/hf_tokenizer.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/mapped/quantized_model.h"
#include "millrace/checkpoint/convert/open_source.h"
#include "millrace/checkpoint/convert/source/foreign_format.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/diff.h"
#include "millrace/checkpoint/read/held_reader.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/retention/collect.h"
#include "millrace/checkpoint/retention/marks.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::cli {
namespace {

using checkpoint::ListedCheckpoint;
using checkpoint::Manifest;
using checkpoint::Reader;

/// The parsed arguments of all commands. Each command uses some of them.
struct Arguments {
  std::string url, source, destination, other, reason;
  std::optional<std::uint64_t> step;
  std::optional<std::int64_t> after;
  std::uint64_t first = 0, second = 0;
  bool all = false, values = false;
  std::string mode = "min";
  std::string quantize;          ///< how export quantizes, or how the base of merge was quantized: nf4 or int8
  std::string format, group;     ///< of import and export; empty: detected, and the whole checkpoint
  std::string type;              ///< of export: the type of matrices in a GGUF file; empty: as in the checkpoint
  std::string config;            ///< of import: the URL of a config.json; may be empty
  std::uint64_t file_bytes = 0;  ///< 0: the default of ImportOptions or ExportOptions
  checkpoint::Retention retention{.keep_last = std::numeric_limits<int>::max()};
};

/// Returns how many requests of 8 MiB the memory budget allows, at most 16 (a guess).
int Parallel(const Context& context) {
  return static_cast<int>(std::clamp<std::uint64_t>(context.DataBudget() / (8 * kMiB), 1, 16));
}

object::Call CallOf(const Context& context) { return {.stop = context.stop}; }

/// Returns the age in the largest unit that gives at least 2.
std::string Age(std::chrono::seconds age) {
  const auto seconds = std::max<std::int64_t>(age.count(), 0);
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{} min", seconds / 60);
  return seconds < 2 * 86'400 ? fmt::format("{} h", seconds / 3600) : fmt::format("{} days", seconds / 86'400);
}
std::optional<std::chrono::seconds> AgeOf(const Manifest& manifest) {
  const auto created = ParseIso8601(manifest.created);
  if (!created) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::seconds>(SystemClock().Wall() - *created);
}
std::string Who(const Manifest& manifest) {
  const checkpoint::Provenance& by = manifest.written_by;
  return by.host.empty() ? "?" : fmt::format("{}@{}", by.user.empty() ? "?" : by.user, by.host);
}
std::string Metrics(const Manifest& manifest) {
  std::string text;
  for (const auto& [name, value] : manifest.metrics)
    text += fmt::format("{}{}={:.5g}", text.empty() ? "" : " ", name, value);
  return text;
}

Json Summary(const Reader& reader) {
  const Manifest& manifest = reader.manifest();
  const checkpoint::Provenance& by = manifest.written_by;
  Json summary{{"step", manifest.step},
               {"name", reader.name()},
               {"created", manifest.created},
               {"ranks", manifest.ranks},
               {"tensors", manifest.tensors.size()},
               {"files", manifest.files.size()},
               {"bytes", manifest.FileBytes()},
               {"writer",
                {{"host", by.host},
                 {"user", by.user},
                 {"program", by.program},
                 {"version", by.version},
                 {"libraries", by.libraries}}},
               {"metrics", manifest.metrics}};
  if (const auto age = AgeOf(manifest)) summary["age_s"] = age->count();
  if (manifest.parent) summary["parent"] = manifest.parent->step;
  return summary;
}

/// Shows the progress of a long command if the options ask for it.
class Bar {
 public:
  Bar(const Context& context, std::uint64_t total) {
    counters_.bytes_known = total;
    counters_.all_known = true;
    if (WantsProgress(context.globals.progress, context.globals.quiet, context.globals.json)) line_.emplace(counters_);
  }
  checkpoint::ByteProgress progress() {
    return [this](std::uint64_t bytes) { counters_.bytes_moved += bytes; };
  }

 private:
  transfer::BatchCounters counters_;
  std::optional<ProgressLine> line_;
};

/// Opens a checkpoint with a hold, for commands that read it.
Result<checkpoint::HeldReader> OpenHeld(const Context& context, object::Connection& connection, const std::string& url,
                                        std::optional<std::uint64_t> step) {
  return checkpoint::OpenHeld(connection, url, step, context.log(), CallOf(context));
}

/// Fails if a command has found damaged checkpoints. The command has reported them one by one.
Status AllWhole(std::size_t damaged, std::size_t of) {
  if (damaged == 0) return {};
  return Fail(Code::kCorrupt, "{} of {} checkpoints {} damaged", damaged, of, damaged == 1 ? "is" : "are");
}

Status List(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  auto entries = MR_TRY(checkpoint::ListCheckpoints(root, CallOf(context)));
  constexpr auto* kRow = "{:>10}  {:>8}  {:>10}  {:>5}  {:>7}  {:<3}  {:<24}  {}\n";
  if (!context.globals.json && !context.globals.quiet && !entries.empty())
    PrintListing(fmt::runtime(kRow), "STEP", "AGE", "SIZE", "RANKS", "TENSORS", "PIN", "BY", "METRICS");
  std::size_t damaged = 0;
  for (const ListedCheckpoint& entry : entries) {
    auto reader = Reader::Open(*connection, arguments.url, entry.step, CallOf(context));
    if (!reader && reader.error().code() == Code::kNotFound) continue;  // removed since it was listed
    if (!reader && reader.error().code() == Code::kCorrupt) {
      PrintError("millrace: {}\n", reader.error().ToString());
      ++damaged;
      continue;
    }
    if (!reader) return Fail(reader.error());
    const Manifest& manifest = (*reader)->manifest();
    if (context.globals.json) {
      Json summary = Summary(**reader);
      summary["pinned"] = entry.pinned;
      PrintJsonListing(summary);
    } else {
      const auto age = AgeOf(manifest);
      PrintListing(fmt::runtime(kRow), manifest.step, age ? Age(*age) : "?", FormatBytes(manifest.FileBytes()),
                   manifest.ranks, manifest.tensors.size(), entry.pinned ? "yes" : "", Who(manifest),
                   Metrics(manifest));
    }
  }
  if (entries.empty() && !context.globals.json) PrintError("no checkpoints in {}\n", arguments.url);
  return AllWhole(damaged, entries.size());
}

Status Show(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  auto reader = MR_TRY(Reader::Open(*connection, arguments.url, arguments.step, CallOf(context)));
  const Manifest& manifest = reader->manifest();
  std::map<std::string_view, std::size_t> pieces;
  for (const checkpoint::Slice& slice : manifest.slices) ++pieces[slice.tensor];
  if (context.globals.json) {
    Json summary = Summary(*reader);
    summary["meta"] = manifest.meta;
    PrintJsonListing(summary);
    for (const auto& [name, meta] : manifest.tensors) {
      PrintJsonListing({{"tensor", name},
                        {"dtype", DTypeName(meta.dtype)},
                        {"shape", meta.shape},
                        {"bytes", meta.bytes()},
                        {"pieces", pieces[name]}});
    }
    return {};
  }
  PrintListing("{}\ncreated {}, {} rank{}, {} file{}, {}\n", reader->name(), manifest.created, manifest.ranks,
               manifest.ranks == 1 ? "" : "s", manifest.files.size(), manifest.files.size() == 1 ? "" : "s",
               FormatBytes(manifest.FileBytes()));
  PrintListing("written by {} with {} {}\n", Who(manifest),
               manifest.written_by.program.empty() ? "?" : manifest.written_by.program, manifest.written_by.version);
  if (manifest.parent) PrintListing("after step {}\n", manifest.parent->step);
  PrintListing("{}{}\n", Metrics(manifest), manifest.metrics.empty() ? "" : "\n");
  std::size_t width = 6;
  for (const auto& [name, meta] : manifest.tensors) width = std::max(width, name.size());
  PrintListing("{:<{}}  {:<5}  {:>10}  {:>6}  SHAPE\n", "TENSOR", width, "DTYPE", "SIZE", "PIECES");
  for (const auto& [name, meta] : manifest.tensors) {
    PrintListing("{:<{}}  {:<5}  {:>10}  {:>6}  [{}]\n", name, width, DTypeName(meta.dtype), FormatBytes(meta.bytes()),
                 pieces[name], fmt::join(meta.shape, ", "));
  }
  PrintListing("\nmeta {}\n", DumpJsonPretty(manifest.meta));
  return {};
}

Status VerifyOne(const Context& context, Reader& reader) {
  auto started = SystemClock().Now();
  std::optional<Bar> bar(std::in_place, context, reader.manifest().FileBytes());
  auto verified = MR_TRY(reader.Verify(Parallel(context), CallOf(context), bar->progress()));
  bar.reset();
  double seconds = std::chrono::duration<double>(SystemClock().Now() - started).count();
  double rate = seconds > 0 ? static_cast<double>(verified.bytes) / 1e6 / seconds : 0;
  if (context.globals.json) {
    PrintJsonLine({{"event", "verified"},
                   {"step", reader.manifest().step},
                   {"name", reader.name()},
                   {"files", verified.files},
                   {"chunks", verified.chunks},
                   {"bytes", verified.bytes},
                   {"seconds", seconds},
                   {"mb_per_s", rate}});
  } else {
    Print("{}: all right: {} files, {} chunks, {} ({:.0f} MB/s)\n", reader.name(), verified.files, verified.chunks,
          FormatBytes(verified.bytes), rate);
  }
  return {};
}

Status Verify(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  if (!arguments.all) {
    const auto held = MR_TRY(OpenHeld(context, *connection, arguments.url, arguments.step));
    return VerifyOne(context, *held.reader);
  }
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  auto entries = MR_TRY(checkpoint::ListCheckpoints(root, CallOf(context)));
  if (entries.empty()) return Fail(Code::kNotFound, "{} has no committed checkpoint", arguments.url);
  std::size_t damaged = 0;
  for (const ListedCheckpoint& entry : entries) {
    const auto held = OpenHeld(context, *connection, arguments.url, entry.step);
    const Status verified = held ? VerifyOne(context, *held->reader) : Fail(held.error());
    if (verified) continue;
    if (verified.error().code() != Code::kCorrupt) return verified;
    PrintError("millrace: {}\n", verified.error().ToString());
    ++damaged;
  }
  return AllWhole(damaged, entries.size());
}

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
      return Fail(Code::kPreconditionFailed, "{} is not the tokenizer any more that the run was trained with",
                  origin->url);
    }
    return checkpoint::TokenizerFilesAt(connection, origin->url, context.log(), CallOf(context));
  };
  auto files = get();
  if (files) return *std::move(files);
  context.log().Warning("the model is exported without its tokenizer", {{"error", files.error()}});
  return {};
}

/// Returns the files of a model's tokenizer: the run's, or those that came with a folder.
std::map<std::string, std::string> ModelFiles(const Context& context, object::Connection& connection,
                                              const checkpoint::ModelSource& source, const std::string& url) {
  if (source.step()) return TokenizerFiles(context, connection, source.reader().manifest());
  auto found = checkpoint::TokenizerFilesAt(connection, url, context.log(), CallOf(context));
  if (found) return *std::move(found);
  context.log().Warning("the model is written without a tokenizer", {{"error", found.error()}});
  return {};
}

Result<std::optional<engine::Quantization>> QuantizationArgument(const Arguments& arguments) {
  if (arguments.quantize.empty()) return std::optional<engine::Quantization>();
  const auto kind = engine::ParseQuantization(arguments.quantize);
  if (!kind) return Fail(Code::kInvalidArgument, "--quantize {}: nf4 or int8", arguments.quantize);
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
  if (context.globals.dry_run) {
    const auto source = MR_TRY(
        checkpoint::ModelSource::Open(*connection, arguments.url, arguments.step, context.log(), CallOf(context)));
    Print("would export {} to {} as {}\n", source.name(), arguments.destination, ForeignFormatName(options.format));
    return {};
  }
  object::Location to = MR_TRY(object::Locate(*connection, arguments.destination));
  MemoryBudget budget(context.DataBudget());
  const auto source =
      MR_TRY(checkpoint::ModelSource::Open(*connection, arguments.url, arguments.step, context.log(), CallOf(context)));
  Reader& reader = source.reader();
  if (options.format == checkpoint::ForeignFormat::kHuggingFace || options.format == checkpoint::ForeignFormat::kGguf)
    options.files = ModelFiles(context, *connection, source, arguments.url);
  std::optional<Bar> bar(std::in_place, context, checkpoint::ExportBytes(reader.manifest(), options));
  auto exported = MR_TRY(checkpoint::Export(reader, to, budget, options, CallOf(context), bar->progress()));
  bar.reset();
  if (context.globals.json) {
    PrintJsonLine({{"event", "exported"},
                   {"step", reader.manifest().step},
                   {"format", ForeignFormatName(options.format)},
                   {"destination", arguments.destination},
                   {"tensors", exported.tensors},
                   {"files", exported.files},
                   {"bytes", exported.bytes}});
  } else {
    Print("{} -> {} ({}): {} tensors, {} in {} file{}\n", reader.name(), arguments.destination,
          ForeignFormatName(options.format), exported.tensors, FormatBytes(exported.bytes), exported.files,
          exported.files == 1 ? "" : "s");
  }
  return {};
}

/// Returns the tokenizer of the run that made the adapter, else the base's.
std::map<std::string, std::string> MergedFiles(const Context& context, object::Connection& connection,
                                               const checkpoint::ModelSource& adapter,
                                               const checkpoint::ModelSource& base, const std::string& base_url) {
  auto files = TokenizerFiles(context, connection, adapter.reader().manifest());
  return files.empty() ? ModelFiles(context, connection, base, base_url) : files;
}

/// Returns how the base of an adapter was quantized while the adapter was trained: what the user says, else what the
/// run wrote down.
Result<std::optional<engine::Quantization>> BaseQuantization(const Arguments& arguments,
                                                             const checkpoint::ModelSource& adapter) {
  if (const auto kind = MR_TRY(QuantizationArgument(arguments))) return kind;
  const Json* train = JsonFind(adapter.reader().manifest().meta, "train");
  if (train == nullptr) return std::optional<engine::Quantization>();
  return engine::ParseQuantization(JsonString(*train, "base_quantization").value_or(""));
}

/// Says how far a merge moved the weights. The outputs of a layer move as far, where its inputs are independent.
void PrintDistance(engine::Quantization kind, const checkpoint::MergeDistance& distance) {
  const auto share = [](double part, double of) { return of > 0 ? 100 * std::sqrt(part / of) : 0.0; };
  Print(
      "merged into what the {} codes stand for, which the adapter was trained over: {:.2g} % (of the weights' norm) "
      "from "
      "the weights before\n",
      QuantizationName(kind), share(distance.quantized, distance.base));
  Print("the adapter adds {:.2g} %; rounding the sums changes {:.2g} %\n", share(distance.update, distance.base),
        share(distance.rounded, distance.base));
}

Status Merge(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  const auto adapter =
      MR_TRY(checkpoint::ModelSource::Open(*connection, arguments.url, arguments.step, context.log(), CallOf(context)));
  const auto config = MR_TRY(adapter.AdapterConfig(CallOf(context)));
  if (!config) return Fail(Code::kNotFound, "{} is no adapter: it has no adapter_config.json", adapter.name());
  std::string from = arguments.other;
  if (const Json* base = JsonFind(*config, "base_model_name_or_path"); from.empty() && base != nullptr) {
    if (base->is_string()) from = base->get<std::string>();
  }
  if (from.empty()) {
    return Fail(Code::kInvalidArgument, "{} does not say which model it adapts; name it with --base", adapter.name());
  }
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
  const auto merge = MR_TRY(
      checkpoint::AdapterMerge::Open(adapter.reader(), *config, base.reader().manifest(), codes, CallOf(context)));
  checkpoint::MergeDistance distance;
  if (context.globals.dry_run) {
    Print("would merge {} into {} as {}: {} weights change\n", adapter.name(), base.name(), arguments.destination,
          merge.tensors());
    return {};
  }
  checkpoint::ExportOptions options{
      .change = [&](const std::string& tensor, std::uint64_t first, MutableByteSpan elements) {
        merge.Apply(tensor, first, elements, &distance);
      }};
  if (arguments.file_bytes > 0) options.file_bytes = arguments.file_bytes;
  options.files = MergedFiles(context, *connection, adapter, base, from);
  const object::Location to = MR_TRY(object::Locate(*connection, arguments.destination));
  std::optional<Bar> bar(std::in_place, context, checkpoint::ExportBytes(base.reader().manifest(), options));
  const auto exported =
      MR_TRY(checkpoint::Export(base.reader(), to, budget, options, CallOf(context), bar->progress()));
  bar.reset();
  if (context.globals.json) {
    Json line{{"event", "merged"},          {"adapter", adapter.name()},
              {"base", base.name()},        {"destination", arguments.destination},
              {"changed", merge.tensors()}, {"tensors", exported.tensors},
              {"files", exported.files},    {"bytes", exported.bytes}};
    if (kind) {
      line["quantized"] = QuantizationName(*kind);
      line["squares"] = {{"base", distance.base},
                         {"update", distance.update},
                         {"quantized", distance.quantized},
                         {"rounded", distance.rounded}};
    }
    PrintJsonLine(line);
  } else {
    Print("{} + {} -> {}: {} of {} tensors changed, {} in {} file{}\n", base.name(), adapter.name(),
          arguments.destination, merge.tensors(), exported.tensors, FormatBytes(exported.bytes), exported.files,
          exported.files == 1 ? "" : "s");
    if (kind) PrintDistance(*kind, distance);
  }
  return {};
}

Status Import(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  const auto format =
      MR_TRY(arguments.format.empty() ? checkpoint::DetectForeignFormat(*connection, arguments.source, CallOf(context))
                                      : checkpoint::ParseForeignFormat(arguments.format));
  checkpoint::SourceOptions known;
  if (!arguments.config.empty()) {
    if (format != checkpoint::ForeignFormat::kMegatron && format != checkpoint::ForeignFormat::kDeepSpeed &&
        format != checkpoint::ForeignFormat::kGguf)
      return Fail(Code::kInvalidArgument, "--config is for megatron, deepspeed and gguf, not for {}",
                  ForeignFormatName(format));
    known.config = MR_TRY(checkpoint::ReadModelConfig(*connection, arguments.config, CallOf(context)));
  }
  auto source = MR_TRY(checkpoint::OpenSource(*connection, arguments.source, format, CallOf(context), known));
  checkpoint::ImportOptions options{.step = arguments.step.value_or(source.step.value_or(0)), .group = arguments.group};
  if (!options.group.empty() && !options.group.ends_with('/')) options.group += '/';
  const std::uint64_t left_out = source.left_out, bytes = source.TensorBytes();
  const std::vector<std::string> notes = source.notes;
  if (context.globals.dry_run) {
    Print("would import {} ({}: {} tensors, {}) as step {} of {}\n", arguments.source, ForeignFormatName(format),
          source.tensors.size(), FormatBytes(bytes), options.step, arguments.url);
    return {};
  }
  MemoryBudget budget(context.DataBudget());
  std::optional<Bar> bar(std::in_place, context, bytes);
  Manifest manifest = MR_TRY(checkpoint::Import(*connection, std::move(source), arguments.url, budget, options,
                                                CallOf(context), bar->progress()));
  bar.reset();
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

Status Collect(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  checkpoint::Retention retention = arguments.retention;
  retention.greatest = arguments.mode == "max";
  const bool dry_run = context.globals.dry_run;
  auto collected = MR_TRY(arguments.after ? checkpoint::RemoveAfter(root, *arguments.after, dry_run, CallOf(context))
                                          : checkpoint::CollectGarbage(root, retention, dry_run, CallOf(context)));
  if (context.globals.json) {
    PrintJsonLine({{"event", "collected"},
                   {"dry_run", dry_run},
                   {"removed_steps", collected.removed_steps},
                   {"objects", collected.objects},
                   {"bytes", collected.bytes},
                   {"uploads", collected.uploads}});
    return {};
  }
  for (std::uint64_t step : collected.removed_steps) Print("{} step {}\n", dry_run ? "would remove" : "removed", step);
  Print("{} {} files ({}) and {} unfinished uploads\n", dry_run ? "would remove" : "removed", collected.objects,
        FormatBytes(collected.bytes), collected.uploads);
  return {};
}

Status Pin(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  const auto me = checkpoint::LocalProvenance("", "");
  return checkpoint::Pin(root, arguments.first, fmt::format("{}@{}", me.user, me.host), arguments.reason,
                         CallOf(context));
}
Status Unpin(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  return checkpoint::Unpin(MR_TRY(object::Locate(*connection, arguments.url)), arguments.first, CallOf(context));
}

void PrintDiff(const Context& context, const checkpoint::TensorDiff& diff) {
  const bool same = diff.change == checkpoint::TensorDiff::Change::kSame;
  if (context.globals.json) {
    Json line{{"tensor", diff.name}, {"result", Name(diff.change)}, {"by_checksum", diff.by_checksum}};
    if (diff.elements > 0) line["elements"] = diff.elements;
    if (diff.max_change) line["max_change"] = *diff.max_change;
    if (diff.max_value) line["max_value"] = *diff.max_value;
    return PrintJsonLine(line);
  }
  if (same) return;
  std::string detail;
  if (diff.change == checkpoint::TensorDiff::Change::kRetyped ||
      diff.change == checkpoint::TensorDiff::Change::kReshaped) {
    detail += fmt::format(", {} [{}] became {} [{}]", DTypeName(diff.first.dtype), fmt::join(diff.first.shape, ", "),
                          DTypeName(diff.second.dtype), fmt::join(diff.second.shape, ", "));
  }
  if (diff.elements > 0) detail += fmt::format(", {} elements", diff.elements);
  if (diff.max_change)
    detail += fmt::format(", by up to {:.4g} (values up to {:.4g})", *diff.max_change, *diff.max_value);
  Print("{}: {}{}\n", diff.name, Name(diff.change), detail);
}

Status Diff(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  const std::string& other = arguments.other.empty() ? arguments.url : arguments.other;
  const auto first = MR_TRY(OpenHeld(context, *connection, arguments.url, arguments.first));
  const auto second = MR_TRY(OpenHeld(context, *connection, other, arguments.second));
  std::uint64_t same = 0, different = 0;
  const checkpoint::DiffOptions options{.values = arguments.values,
                                        .window = std::clamp<std::uint64_t>(context.DataBudget() / 4, kMiB, 16 * kMiB),
                                        .parallel = Parallel(context)};
  MR_TRY(checkpoint::DiffCheckpoints(
      *first.reader, *second.reader, options,
      [&](const checkpoint::TensorDiff& diff) {
        ++(diff.change == checkpoint::TensorDiff::Change::kSame ? same : different);
        PrintDiff(context, diff);
      },
      CallOf(context)));
  if (context.globals.json) {
    PrintJsonLine({{"event", "compared"}, {"same", same}, {"different", different}});
  } else {
    Print("{} tensors are the same, {} are not\n", same, different);
  }
  return {};
}

using Action = Status (*)(const Context&, const Arguments&);

/// Adds a command with the given positional arguments, in that order.
CLI::App* AddAction(CLI::App& parent, Context& context, std::shared_ptr<Arguments> arguments, std::string name,
                    std::string description, std::string examples, Action action,
                    std::initializer_list<std::string Arguments::*> positionals = {&Arguments::url}) {
  CLI::App* command = AddCommand(parent, context, std::move(name), std::move(description), std::move(examples),
                                 [&context, arguments, action] {
                                   Status status = action(context, *arguments);
                                   return status ? kExitOk : ReportError(context, status.error());
                                 });
  for (auto positional : positionals) {
    bool url = positional == &Arguments::url;
    const char* label = url ? "url" : positional == &Arguments::source ? "source" : "destination";
    command
        ->add_option(label, (*arguments).*positional,
                     url ? "Where the checkpoints are: s3://bucket/prefix or a folder"
                         : "A folder or file: s3://bucket/key or a path")
        ->required();
  }
  return command;
}

/// Adds import and export, and the options that they share.
void AddConversions(CLI::App& ckpt, Context& context, const std::shared_ptr<Arguments>& arguments,
                    const std::function<CLI::Option*(CLI::App*, const char*)>& add_step) {
  const auto written = CLI::IsMember({"hf", "peft", "torch", "dcp", "gguf"});
  const auto read = CLI::IsMember({"hf", "peft", "torch", "dcp", "megatron", "deepspeed", "gguf"});
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
  add_step(to, "Which checkpoint (default: the newest)");
  to->add_option("--to", arguments->format,
                 "hf (folder), peft (folder), torch (file), dcp (folder), gguf (file); default: torch for *.pt *.pth "
                 "*.bin *.ckpt, gguf for *.gguf, else hf")
      ->check(written);
  to->add_option("--type", arguments->type,
                 "gguf: matrices are f32, f16, bf16, q8_0 or q4_0 (default: as in the checkpoint)")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0", "q4_0"}));
  to->add_option("--group", arguments->group, "torch and dcp: only what lies below this path, such as model");
  const auto add_file_size = [&](CLI::App* command) {
    command->add_option_function<std::string>(
        "--file-size",
        [arguments](const std::string& text) {
          auto bytes = ParseBytes(text);
          if (!bytes || *bytes == 0) throw CLI::ValidationError("--file-size", "\"" + text + "\" is no size; try 5GB");
          arguments->file_bytes = *bytes;
        },
        "Begin another file of weights after so many bytes (default: 5GB)");
  };
  add_file_size(to);
  const auto kinds = CLI::IsMember({"nf4", "int8"});
  to->add_option("--quantize", arguments->quantize,
                 "hf only: write the matrices of blocks in 4 or 8 bits, in the form of bitsandbytes: nf4 or int8")
      ->check(kinds);
  CLI::App* merge = AddAction(ckpt, context, arguments, "merge",
                              "Add an adapter (LoRA) to its model, and write the result as a Hugging Face folder",
                              "  millrace ckpt merge s3://runs/tuned ./tuned-model\n"
                              "  millrace ckpt merge ./peft-adapter s3://models/tuned --base s3://models/llama-2-7b\n",
                              &Merge, {&Arguments::url, &Arguments::destination});
  add_step(merge, "Which checkpoint of the adapter (default: the newest)");
  merge->add_option("--base", arguments->other, "The model (default: what the adapter says that it adapts)");
  merge
      ->add_option(
          "--quantize", arguments->quantize,
          "How the model was quantized while the adapter was trained: nf4 or int8 (default: what the adapter's "
          "run wrote down)")
      ->check(kinds);
  add_file_size(merge);
  CLI::App* from = AddAction(ckpt, context, arguments, "import",
                             "Make a checkpoint of what others saved: Hugging Face, PEFT, torch.save, DCP, Megatron, "
                             "DeepSpeed, GGUF",
                             "  millrace ckpt import ./Llama-2-7b-hf s3://runs/llama-2-7b\n"
                             "  millrace ckpt import ./lora-adapter s3://runs/lora\n"
                             "  millrace ckpt import ./checkpoint.pt s3://runs/old --step 1000\n"
                             "  millrace ckpt import s3://runs/dcp/step-1000 s3://runs/new --step 1000\n"
                             "  millrace ckpt import ./megatron-run s3://runs/new\n"
                             "  millrace ckpt import ./deepspeed-run s3://runs/new --config ./config.json\n"
                             "  millrace ckpt import ./llama-2-7b.Q8_0.gguf s3://runs/llama-2-7b\n"
                             "No pickle is run: only tensors and plain values are read from one.\n",
                             &Import, {&Arguments::source, &Arguments::url});
  add_step(from, "The checkpoint's step (default: that of Megatron's or DeepSpeed's files, else 0)");
  from->add_option("--from", arguments->format,
                   "hf, peft, torch, dcp, megatron, deepspeed or gguf (default: by the names of the files)")
      ->check(read);
  from->add_option("--config", arguments->config,
                   "megatron, deepspeed and gguf: the model's Hugging Face config.json (default: from the files)");
  from->add_option("--group", arguments->group, "Put this path in front of every name, such as model");
}

}  // namespace

void AddCheckpointCommands(CLI::App& app, Context& context) {
  CLI::App* ckpt =
      app.add_subcommand("ckpt", "List, inspect, compare, verify, export, import, pin and clean up checkpoints");
  ckpt->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  auto add_step = [&](CLI::App* command, const char* what = "Which checkpoint (default: the newest)") {
    return command->add_option("--step", arguments->step, what);
  };
  AddAction(*ckpt, context, arguments, "ls", "List committed checkpoints",
            "  millrace ckpt ls s3://runs/llama-demo\n  millrace ckpt ls --json ./runs/demo | jq .step\n", &List);
  add_step(AddAction(*ckpt, context, arguments, "show", "Show what a checkpoint holds: tensors, shapes, training state",
                     "  millrace ckpt show s3://runs/llama-demo --step 150\n", &Show));
  CLI::App* verify =
      AddAction(*ckpt, context, arguments, "verify", "Read every byte of a checkpoint and compare it with its checksum",
                "  millrace ckpt verify s3://runs/llama-demo\n  millrace ckpt verify s3://runs/llama-demo --all\n"
                "Exit status 1 names the file and the bytes that are damaged.\n",
                &Verify);
  verify->add_flag("--all", arguments->all, "Every checkpoint, oldest first")->excludes(add_step(verify));
  AddConversions(*ckpt, context, arguments, add_step);
  CLI::App* gc = AddAction(*ckpt, context, arguments, "gc",
                           "Remove files of saves that never committed and, if asked, old checkpoints",
                           "  millrace ckpt gc s3://runs/llama-demo --dry-run\n"
                           "  millrace ckpt gc s3://runs/llama-demo --keep-last 3 --keep-every 1000\n",
                           &Collect);
  gc->add_option("--keep-last", arguments->retention.keep_last, "Keep only the newest N checkpoints (default: all)")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  gc->add_option("--keep-every", arguments->retention.keep_every, "Also keep steps that are multiples of N");
  gc->add_option("--keep-best", arguments->retention.keep_best, "Also keep the N with the best metric")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  gc->add_option("--metric", arguments->retention.metric, "By which (default: loss)");
  gc->add_option("--mode", arguments->mode, "Whether the least or the greatest is best")
      ->check(CLI::IsMember({"min", "max"}));
  gc->add_option("--after", arguments->after, "Instead remove the checkpoints of later steps: a run goes back to STEP")
      ->check(CLI::NonNegativeNumber)
      ->excludes("--keep-last")
      ->excludes("--keep-every")
      ->excludes("--keep-best");
  auto add_positional_step = [](CLI::App* command, const char* name, std::uint64_t& step, const char* what) {
    command->add_option(name, step, what)->required();
  };
  CLI::App* pin = AddAction(*ckpt, context, arguments, "pin", "Keep a checkpoint whatever retention says",
                            "  millrace ckpt pin s3://runs/llama-demo 1500 --reason 'the paper'\n", &Pin);
  add_positional_step(pin, "step", arguments->first, "Which checkpoint");
  pin->add_option("--reason", arguments->reason, "Kept beside it, for people");
  add_positional_step(AddAction(*ckpt, context, arguments, "unpin", "Let retention have a pinned checkpoint again",
                                "  millrace ckpt unpin s3://runs/llama-demo 1500\n", &Unpin),
                      "step", arguments->first, "Which checkpoint");
  CLI::App* diff = AddAction(*ckpt, context, arguments, "diff", "Show which tensors differ between two checkpoints",
                             "  millrace ckpt diff s3://runs/llama-demo 1000 1500 --values\n"
                             "  millrace ckpt diff s3://runs/a 1000 1000 --other s3://runs/b\n"
                             "What the checksums prove to be the same is not read.\n",
                             &Diff);
  add_positional_step(diff, "first", arguments->first, "A step");
  add_positional_step(diff, "second", arguments->second, "Another one");
  diff->add_option("--other", arguments->other, "Where the second one is (default: the same place)");
  diff->add_flag("--values", arguments->values, "How far the values are apart");
}

}  // namespace millrace::cli
