// millrace ckpt: lists, shows, verifies, compares, pins and removes checkpoints.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/millrace/checkpoint/action.h"
#include "apps/millrace/checkpoint/conversion_commands.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/commit/pins.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/diff.h"
#include "millrace/checkpoint/read/held_reader.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace ckpt {
namespace {

using checkpoint::ListedCheckpoint;
using checkpoint::Manifest;
using checkpoint::Reader;

/// Returns how many requests of 8 MiB the memory budget allows, at most 16 (a guess).
int Parallel(const Context& context) {
  return static_cast<int>(std::clamp<std::uint64_t>(context.DataBudget() / (8 * kMiB), 1, 16));
}

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
  if (manifest.epoch > 0) summary["epoch"] = manifest.epoch;
  if (manifest.parent) summary["parent"] = manifest.parent->step;
  return summary;
}

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
  std::vector<ListedCheckpoint> superseded;
  auto entries = MR_TRY(checkpoint::ListCheckpoints(root, CallOf(context), &superseded));
  for (const ListedCheckpoint& entry : superseded) {
    PrintError("millrace: step {} does not count: its run had lost its place to another one when it saved\n",
               entry.step);
  }
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
  if (entries.empty() && !context.globals.json) {
    PrintError("millrace: {}\n", checkpoint::NoCheckpoints(root, arguments.url, CallOf(context)).message());
  }
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
  const checkpoint::Provenance& by = manifest.written_by;
  PrintListing("written by {} with {}{}{}\n", Who(manifest), by.program.empty() ? "?" : by.program,
               by.version.empty() ? "" : " ", by.version);
  if (manifest.parent) PrintListing("the checkpoint before it is that of step {}\n", manifest.parent->step);
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
  std::optional<ProgressBar> bar(std::in_place, context, reader.manifest().FileBytes());
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
  if (entries.empty()) return Fail(checkpoint::NoCheckpoints(root, arguments.url, CallOf(context)));
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

Status Collect(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  checkpoint::Retention retention = arguments.retention;
  retention.greatest = arguments.mode == "max";
  const bool dry_run = context.globals.dry_run;
  auto collected = MR_TRY(arguments.after ? checkpoint::RemoveAfter(root, *arguments.after, dry_run, CallOf(context))
                                          : checkpoint::CollectGarbage(root, retention, dry_run, CallOf(context)));
  for (std::uint64_t step : collected.contested_steps) {
    PrintError("millrace: step {} stays: another program changed it first; try again\n", step);
  }
  if (context.globals.json) {
    PrintJsonLine({{"event", "collected"},
                   {"dry_run", dry_run},
                   {"removed_steps", collected.removed_steps},
                   {"contested_steps", collected.contested_steps},
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
  MR_TRY(RefuseDryRun(context, "ckpt pin"));
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  const auto me = checkpoint::LocalProvenance("", "");
  return checkpoint::Pin(root, arguments.first, fmt::format("{}@{}", me.user, me.host), arguments.reason,
                         CallOf(context));
}
Status Unpin(const Context& context, const Arguments& arguments) {
  MR_TRY(RefuseDryRun(context, "ckpt unpin"));
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

void AddCommands(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("ckpt", "List, inspect, compare, verify, export, import, pin and clean up checkpoints");
  command->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  AddAction(*command, context, arguments, "ls", "List committed checkpoints",
            "  millrace ckpt ls s3://runs/llama-demo\n  millrace ckpt ls --json ./runs/demo | jq .step\n", &List);
  AddStep(
      AddAction(*command, context, arguments, "show", "Show what a checkpoint holds: tensors, shapes, training state",
                "  millrace ckpt show s3://runs/llama-demo --step 150\n", &Show),
      arguments);
  CLI::App* verify = AddAction(
      *command, context, arguments, "verify", "Read every byte of a checkpoint and compare it with its checksum",
      "  millrace ckpt verify s3://runs/llama-demo\n  millrace ckpt verify s3://runs/llama-demo --all\n"
      "Exit status 1 names the file and the bytes that are damaged.\n",
      &Verify);
  verify->add_flag("--all", arguments->all, "Every checkpoint, oldest first")->excludes(AddStep(verify, arguments));
  AddConversions(*command, context, arguments);
  CLI::App* gc = AddAction(*command, context, arguments, "gc",
                           "Remove files of saves that never committed and, if asked, old checkpoints",
                           "  millrace ckpt gc s3://runs/llama-demo --dry-run\n"
                           "  millrace ckpt gc s3://runs/llama-demo --keep-last 3 --keep-every 1000\n",
                           &Collect);
  gc->add_option("--keep-last", arguments->retention.keep_last, "Keep only the newest N checkpoints (default: all)")
      ->check(AtLeast(1));
  gc->add_option("--keep-every", arguments->retention.keep_every, "Also keep steps that are multiples of N");
  gc->add_option("--keep-best", arguments->retention.keep_best, "Also keep the N with the best metric")
      ->check(AtLeast(0));
  gc->add_option("--metric", arguments->retention.metric, "By which (default: loss)");
  gc->add_option("--mode", arguments->mode, "Whether the least or the greatest is best")->check(OneOf({"min", "max"}));
  gc->add_option("--after", arguments->after, "Instead remove the checkpoints of later steps: a run goes back to STEP")
      ->check(AtLeast(0))
      ->excludes("--keep-last")
      ->excludes("--keep-every")
      ->excludes("--keep-best");
  auto add_positional_step = [](CLI::App* command, const char* name, std::uint64_t& step, const char* what) {
    command->add_option(name, step, what)->required();
  };
  CLI::App* pin = AddAction(*command, context, arguments, "pin", "Keep a checkpoint whatever retention says",
                            "  millrace ckpt pin s3://runs/llama-demo 1500 --reason 'the paper'\n", &Pin);
  add_positional_step(pin, "step", arguments->first, "Which checkpoint");
  pin->add_option("--reason", arguments->reason, "Kept beside it, for people");
  add_positional_step(AddAction(*command, context, arguments, "unpin", "Let retention have a pinned checkpoint again",
                                "  millrace ckpt unpin s3://runs/llama-demo 1500\n", &Unpin),
                      "step", arguments->first, "Which checkpoint");
  CLI::App* diff = AddAction(*command, context, arguments, "diff", "Show which tensors differ between two checkpoints",
                             "  millrace ckpt diff s3://runs/llama-demo 1000 1500 --values\n"
                             "  millrace ckpt diff s3://runs/a 1000 1000 --other s3://runs/b\n"
                             "What the checksums prove to be the same is not read.\n",
                             &Diff);
  add_positional_step(diff, "first", arguments->first, "A step");
  add_positional_step(diff, "second", arguments->second, "Another one");
  diff->add_option("--other", arguments->other, "Where the second one is (default: the same place)");
  diff->add_flag("--values", arguments->values, "How far the values are apart");
}

}  // namespace
}  // namespace ckpt

void AddCheckpointCommands(CLI::App& app, Context& context) { ckpt::AddCommands(app, context); }

}  // namespace millrace::cli
