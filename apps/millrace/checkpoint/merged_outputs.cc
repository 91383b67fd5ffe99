#include "apps/millrace/checkpoint/merged_outputs.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "millrace/base/process/subprocess.h"

namespace millrace::cli::ckpt {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr auto kGrace = std::chrono::seconds(5);
constexpr std::size_t kMostOutput = 64 * 1024;

double Number(const Json& object, std::string_view key) { return JsonNumber(object, key).value_or(0); }

}  // namespace

Result<Json> MeasureOutputs(const Context& context, const MadeMerge& merge) {
  const std::filesystem::path program = MR_TRY(ProgramDirectory()) / "millrace-train";
  std::error_code error;
  if (!std::filesystem::exists(program, error)) {
    return Fail(Code::kUnsupported, "the engine is not installed: there is no {}", program.string());
  }
  std::vector<std::string> argv = {
      program.string(), "outputs",      merge.adapter_url, merge.merged_url,
      "--base",         merge.base_url, "--quantize",      std::string(QuantizationName(merge.quantization))};
  if (merge.adapter.step()) argv.insert(argv.end(), {"--step", std::to_string(*merge.adapter.step())});
  auto child = MR_TRY(
      Subprocess::Start({.argv = std::move(argv), .env = GlobalsEnvironment(context.globals), .capture_stdout = true}));
  std::optional<ExitState> ended;
  while (!(ended = child.Wait(kPoll))) {
    if (!context.stop.stop_requested()) continue;
    child.Stop(kGrace);
    return Fail(Code::kCancelled, "stopped");
  }
  const std::string text = MR_TRY(child.ReadStdout(kMostOutput));
  auto outputs = ParseJson(text, "the output of millrace-train outputs");
  if (!outputs) return Fail(Code::kInternal, "millrace-train outputs failed ({})", ended->ToString());
  if (const auto error = JsonString(*outputs, "error")) return Fail(Code::kInternal, "{}", *error);
  return outputs;
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
