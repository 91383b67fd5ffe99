#include "apps/millrace/checkpoint/merged_outputs.h"

#include <string>
#include <vector>

#include "apps/millrace/cli/engine_program.h"

namespace millrace::cli::ckpt {
namespace {

double Number(const Json& object, std::string_view key) { return JsonNumber(object, key).value_or(0); }

}  // namespace

Result<Json> MeasureOutputs(const Context& context, const MadeMerge& merge) {
  std::vector<std::string> arguments = {"outputs",
                                        merge.adapter_url,
                                        merge.merged_url,
                                        "--base",
                                        merge.base_url,
                                        "--quantize",
                                        std::string(QuantizationName(merge.quantization))};
  if (merge.adapter.step()) arguments.insert(arguments.end(), {"--step", std::to_string(*merge.adapter.step())});
  return AskEngine(context, std::move(arguments));
}

std::string OutputsText(const Json& outputs) {
  const bool random = JsonString(outputs, "of").value_or("") == "random";
  std::string text = fmt::format(
      "on {} {}, the merged model's logits differ from those in training by\n"
      "{:.2g} % of their norm\n"
      "it predicts the same next token for {:.4g} % of them; the divergence is {:.2g} nats a token\n",
      JsonInt(outputs, "tokens").value_or(0), random ? "random tokens" : "tokens of the run's data",
      100 * Number(outputs, "relative_error"), 100 * Number(outputs, "equal_share"), Number(outputs, "divergence"));
  if (random) {
    text += fmt::format("the tokens are random, because the run's data were not read: {}\n",
                        JsonString(outputs, "why").value_or("unknown"));
  }
  return text;
}

}  // namespace millrace::cli::ckpt
