// millrace ckpt: what checkpoints there are, whether they are whole, and what may go.
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "apps/millrace/cli.h"
#include "millrace/base/memory_budget.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/export.h"
#include "millrace/checkpoint/import.h"

namespace millrace::cli {
namespace {

using checkpoint::Entry;
using checkpoint::Manifest;
using checkpoint::Reader;

/// What the user typed; each command uses its share.
struct Arguments {
  std::string url, source, destination;
  std::optional<std::uint64_t> step;
  bool all = false;
  int keep_last = std::numeric_limits<int>::max();
  std::uint64_t keep_every = 0;
};

std::uint64_t FileBytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.size;
  return bytes;
}

/// Requests of up to 8 MiB each that the memory budget allows.
int Parallel(const Context& context) {
  return static_cast<int>(std::clamp<std::uint64_t>(context.DataBudget() / (8 * kMiB), 1, 16));
}

object::Call CallOf(const Context& context) { return {.stop = context.stop}; }

Json Summary(const Reader& reader) {
  const Manifest& manifest = reader.manifest();
  return {{"step", manifest.step},
          {"name", reader.name()},
          {"created", manifest.created},
          {"ranks", manifest.ranks},
          {"tensors", manifest.tensors.size()},
          {"files", manifest.files.size()},
          {"bytes", FileBytes(manifest)}};
}

Status List(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  auto entries = MR_TRY(checkpoint::ListCheckpoints(root, CallOf(context)));
  if (!context.globals.json && !context.globals.quiet && !entries.empty())
    fmt::print("{:>10}  {:>24}  {:>5}  {:>7}  {:>10}\n", "STEP", "CREATED", "RANKS", "TENSORS", "SIZE");
  for (const Entry& entry : entries) {
    auto reader = Reader::Open(*connection, arguments.url, entry.step, CallOf(context));
    if (!reader && reader.error().code() == Code::kNotFound) continue;  // removed since it was listed
    if (!reader) return Fail(reader.error());
    const Manifest& manifest = (*reader)->manifest();
    if (context.globals.json) {
      PrintJsonLine(Summary(**reader));
    } else {
      fmt::print("{:>10}  {:>24}  {:>5}  {:>7}  {:>10}\n", manifest.step, manifest.created, manifest.ranks,
                 manifest.tensors.size(), FormatBytes(FileBytes(manifest)));
    }
  }
  if (entries.empty() && !context.globals.json) fmt::print(stderr, "no checkpoints in {}\n", arguments.url);
  return {};
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
    PrintJsonLine(summary);
    for (const auto& [name, meta] : manifest.tensors) {
      PrintJsonLine({{"tensor", name},
                     {"dtype", DTypeName(meta.dtype)},
                     {"shape", meta.shape},
                     {"bytes", meta.bytes()},
                     {"pieces", pieces[name]}});
    }
    return {};
  }
  fmt::print("{}\ncreated {}, {} rank{}, {} file{}, {}\n\n", reader->name(), manifest.created, manifest.ranks,
             manifest.ranks == 1 ? "" : "s", manifest.files.size(), manifest.files.size() == 1 ? "" : "s",
             FormatBytes(FileBytes(manifest)));
  std::size_t width = 6;
  for (const auto& [name, meta] : manifest.tensors) width = std::max(width, name.size());
  fmt::print("{:<{}}  {:<5}  {:>10}  {:>6}  SHAPE\n", "TENSOR", width, "DTYPE", "SIZE", "PIECES");
  for (const auto& [name, meta] : manifest.tensors) {
    fmt::print("{:<{}}  {:<5}  {:>10}  {:>6}  [{}]\n", name, width, DTypeName(meta.dtype), FormatBytes(meta.bytes()),
               pieces[name], fmt::join(meta.shape, ", "));
  }
  fmt::print("\nmeta {}\n", DumpJsonPretty(manifest.meta));
  return {};
}

Status VerifyOne(const Context& context, Reader& reader) {
  auto started = SystemClock().Now();
  auto verified = MR_TRY(reader.Verify(Parallel(context), CallOf(context)));
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
    fmt::print("{}: all right: {} files, {} chunks, {} ({:.0f} MB/s)\n", reader.name(), verified.files, verified.chunks,
               FormatBytes(verified.bytes), rate);
  }
  return {};
}

Status Verify(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  if (!arguments.all) {
    auto reader = MR_TRY(Reader::Open(*connection, arguments.url, arguments.step, CallOf(context)));
    return VerifyOne(context, *reader);
  }
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  auto entries = MR_TRY(checkpoint::ListCheckpoints(root, CallOf(context)));
  if (entries.empty()) return Fail(Code::kNotFound, "{} has no committed checkpoint", arguments.url);
  for (const Entry& entry : entries) {
    auto reader = MR_TRY(Reader::Open(*connection, arguments.url, entry.step, CallOf(context)));
    MR_TRY(VerifyOne(context, *reader));
  }
  return {};
}

Status Export(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  auto reader = MR_TRY(Reader::Open(*connection, arguments.url, arguments.step, CallOf(context)));
  if (context.globals.dry_run) {
    fmt::print("would export {} to {}\n", reader->name(), arguments.destination);
    return {};
  }
  object::Location folder = MR_TRY(object::Locate(*connection, arguments.destination));
  MemoryBudget budget(context.DataBudget());
  auto exported = MR_TRY(checkpoint::ExportHuggingFace(*reader, folder, budget, CallOf(context)));
  if (context.globals.json) {
    PrintJsonLine({{"event", "exported"},
                   {"step", reader->manifest().step},
                   {"destination", arguments.destination},
                   {"tensors", exported.tensors},
                   {"bytes", exported.bytes}});
  } else {
    fmt::print("{} -> {}: {} tensors, {}\n", reader->name(), arguments.destination, exported.tensors,
               FormatBytes(exported.bytes));
  }
  return {};
}

Status Import(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  const std::uint64_t step = arguments.step.value_or(0);
  if (context.globals.dry_run) {
    fmt::print("would import {} as step {} of {}\n", arguments.source, step, arguments.url);
    return {};
  }
  MemoryBudget budget(context.DataBudget());
  Manifest manifest = MR_TRY(
      checkpoint::ImportHuggingFace(*connection, arguments.source, arguments.url, step, budget, CallOf(context)));
  if (context.globals.json) {
    PrintJsonLine({{"event", "imported"},
                   {"step", step},
                   {"source", arguments.source},
                   {"tensors", manifest.tensors.size()},
                   {"bytes", FileBytes(manifest)}});
  } else {
    fmt::print("{} -> step {} of {}: {} tensors, {}\n", arguments.source, step, arguments.url, manifest.tensors.size(),
               FormatBytes(FileBytes(manifest)));
  }
  return {};
}

Status Collect(const Context& context, const Arguments& arguments) {
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(object::Locate(*connection, arguments.url));
  checkpoint::Retention retention{arguments.keep_last, arguments.keep_every};
  const bool dry_run = context.globals.dry_run;
  auto collected = MR_TRY(checkpoint::CollectGarbage(root, retention, dry_run, CallOf(context)));
  if (context.globals.json) {
    PrintJsonLine({{"event", "collected"},
                   {"dry_run", dry_run},
                   {"removed_steps", collected.removed_steps},
                   {"objects", collected.objects},
                   {"bytes", collected.bytes},
                   {"uploads", collected.uploads}});
    return {};
  }
  for (std::uint64_t step : collected.removed_steps)
    fmt::print("{} step {}\n", dry_run ? "would remove" : "removed", step);
  fmt::print("{} {} files ({}) and {} unfinished uploads\n", dry_run ? "would remove" : "removed", collected.objects,
             FormatBytes(collected.bytes), collected.uploads);
  return {};
}

using Action = Status (*)(const Context&, const Arguments&);

/// A command whose positional arguments are `positionals`, in that order.
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
                         : "A Hugging Face folder: s3://bucket/prefix or a path")
        ->required();
  }
  return command;
}

}  // namespace

void AddCheckpointCommands(CLI::App& app, Context& context) {
  CLI::App* ckpt = app.add_subcommand("ckpt", "List, inspect, verify, export, import and clean up checkpoints");
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
  add_step(AddAction(
      *ckpt, context, arguments, "export", "Write the model as a Hugging Face folder",
      "  millrace ckpt export s3://runs/llama-demo ./llama-demo\n"
      "  python -c 'from transformers import AutoModelForCausalLM as M; M.from_pretrained(\"./llama-demo\")'\n",
      &Export, {&Arguments::url, &Arguments::destination}));
  add_step(AddAction(*ckpt, context, arguments, "import", "Make a checkpoint of a Hugging Face folder",
                     "  millrace ckpt import ./Llama-2-7b-hf s3://runs/llama-2-7b\n", &Import,
                     {&Arguments::source, &Arguments::url}),
           "The checkpoint's step (default: 0)");
  CLI::App* gc = AddAction(*ckpt, context, arguments, "gc",
                           "Remove files of saves that never committed and, if asked, old checkpoints",
                           "  millrace ckpt gc s3://runs/llama-demo --dry-run\n"
                           "  millrace ckpt gc s3://runs/llama-demo --keep-last 3 --keep-every 1000\n",
                           &Collect);
  gc->add_option("--keep-last", arguments->keep_last, "Keep only the newest N checkpoints (default: all)")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  gc->add_option("--keep-every", arguments->keep_every, "Also keep steps that are multiples of N");
}

}  // namespace millrace::cli
