#include "apps/millrace-train/outputs_command.h"

#include <algorithm>
#include <utility>

#include "apps/common/flag_checks.h"
#include "apps/common/output.h"
#include "apps/millrace-train/job_options.h"
#include "millrace/base/process/cores.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/runtime.h"
#include "millrace/object/open/open.h"
#include "millrace/plan/machine.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace {
namespace {

/// Returns the beginnings of samples that the adapter's run learnt.
Result<train::ComparedTokens> TokensOfRun(object::Connection& connection, const OutputsArguments& arguments,
                                          const Logger& log, const object::Call& call) {
  const auto adapter =
      MR_TRY(checkpoint::ModelSource::Open(connection, arguments.merged.adapter_url, arguments.merged.step, log, call));
  const auto job = JsonString(adapter.reader().manifest().meta, "job");
  if (!job)
    return Fail(Code::kNotFound, "{} does not say which data it learnt; take a checkpoint of millrace-train",
                adapter.name());
  const train::Options options = MR_TRY(OptionsOf(MR_TRY(jobs::Spec::Parse(*job, adapter.name(), {}))));
  if (options.data.objective != data::Objective::kCausalLm) {
    return Fail(Code::kUnsupported, "the model's data are not texts but those of {}",
                data::ObjectiveName(options.data.objective));
  }
  const auto tokenizer = MR_TRY(tokenizer::OpenTokenizer(connection, options.tokenizer_url, log, call));
  const auto dataset = MR_TRY(data::Dataset::Open(connection, tokenizer, options.data, log, call));
  return train::TokensOf(*dataset, arguments.sequences, arguments.length, call);
}

Result<Json> MeasureOutputs(const OutputsArguments& arguments, const cli::Globals& globals, std::stop_token stop) {
  const Logger log = Logger::Stderr(globals.log_level);
  const object::Call call{.stop = std::move(stop), .deadline = {}};
  engine::ConfigureRuntime(ComputeThreads());
  object::ConnectOptions connect = globals.connect;
  connect.log = log;
  const auto connection = MR_TRY(object::OpenConnection(std::move(connect)));
  train::MergedAdapter merged = arguments.merged;
  merged.quantization = engine::ParseQuantization(arguments.quantization);
  Json line = {{"event", "outputs"}, {"of", "data"}};
  auto tokens = TokensOfRun(*connection, arguments, log, call);
  if (!tokens) {
    line.update({{"of", "random"}, {"why", tokens.error().message()}});
    const engine::ModelSizes sizes = MR_TRY(train::SizesOf(*connection, merged, log, call));
    tokens =
        train::RandomTokens(sizes.vocab_size, arguments.sequences, std::min(arguments.length, sizes.max_positions));
  }
  train::ComparisonOptions options{.log = log};
  const double memory = plan::Machine::ThisMachine().RankMemory(1);
  options.weight_bytes = arguments.weight_bytes > 0 ? arguments.weight_bytes : static_cast<std::uint64_t>(memory / 2);
  line.update(MR_TRY(train::CompareOutputs(*connection, merged, *tokens, options, call)).ToJson());
  return line;
}

}  // namespace

CLI::App* AddOutputsCommand(CLI::App& app, OutputsArguments& arguments) {
  CLI::App* command = app.add_subcommand("outputs", "Compare the outputs of a merged model with those of its adapter");
  train::MergedAdapter& merged = arguments.merged;
  command->add_option("adapter", merged.adapter_url, "The adapter")->required();
  command->add_option("merged", merged.merged_url, "The merged model")->required();
  command->add_option("--base", merged.base_url, "The model that the adapter adapts")->required();
  command->add_option("--step", merged.step, "Which checkpoint of the adapter (default: the newest)");
  command->add_option("--quantize", arguments.quantization, "How the base was quantized: nf4, int8 or fp8")
      ->check(cli::OneOf({"nf4", "int8", "fp8"}));
  command->add_option("--sequences", arguments.sequences, "How many sequences")
      ->check(cli::Between(1, 1 << 10))
      ->capture_default_str();
  command->add_option("--length", arguments.length, "Tokens of each")
      ->check(cli::Between(1, 1 << 14))
      ->capture_default_str();
  command->add_option("--weight-bytes", arguments.weight_bytes, "Weights in memory at once (default: half of memory)");
  return command;
}

int PrintOutputs(const OutputsArguments& arguments, const cli::Globals& globals, std::stop_token stop) {
  const auto line = MeasureOutputs(arguments, globals, std::move(stop));
  cli::Print("{}\n", DumpJson(line ? *line : Json{{"event", "outputs"}, {"error", line.error().ToString()}}));
  return line ? 0 : ToExitStatus(line.error().code());
}

}  // namespace millrace
