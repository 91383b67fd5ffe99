// Helpers that the `millrace ckpt …` commands share.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/progress.h"
#include "millrace/checkpoint/commit/retention.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::cli::ckpt {

/// The parsed arguments of all commands. Each command uses some of them.
struct Arguments {
  std::string url, source, destination, other, reason;
  std::optional<std::uint64_t> step;
  std::optional<std::int64_t> after;
  std::uint64_t first = 0, second = 0;
  bool all = false, values = false;
  std::string mode = "min";
  std::string quantize;          ///< how export quantizes, or how the base of merge was quantized: nf4, int8 or fp8
  std::string format, group;     ///< of import and export; empty: detected, and the whole checkpoint
  bool skips_outputs = false;    ///< merge does not measure what it does to the model's outputs
  std::string type;              ///< of export: the type of matrices in a GGUF file; empty: as in the checkpoint
  std::string config;            ///< of import: the URL of a config.json; may be empty
  std::string share;             ///< of import: "I/N" or "auto"; empty: all
  std::uint64_t file_bytes = 0;  ///< 0: the default of ImportOptions or ExportOptions
  checkpoint::Retention retention{.keep_last = std::numeric_limits<int>::max()};
};

/// Returns the call with which a command reads and writes: the user may stop it.
inline object::Call CallOf(const Context& context) { return {.stop = context.stop}; }

/// Shows the progress of a long command if the options ask for it.
class ProgressBar {
 public:
  ProgressBar(const Context& context, std::uint64_t total) {
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

/// The work of a command. Its error is reported, and decides the exit status.
using Action = Status (*)(const Context&, const Arguments&);

/// Adds a command with the given positional arguments, in that order.
CLI::App* AddAction(CLI::App& parent, Context& context, std::shared_ptr<Arguments> arguments, std::string name,
                    std::string description, std::string examples, Action action,
                    std::initializer_list<std::string Arguments::*> positionals = {&Arguments::url});
/// Adds the option --step.
CLI::Option* AddStep(CLI::App* command, const std::shared_ptr<Arguments>& arguments,
                     const char* what = "Which checkpoint (default: the newest)");

}  // namespace millrace::cli::ckpt
