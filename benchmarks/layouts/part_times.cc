// Times the parts of models, forward and backward, beside the work that pipelines divide by: how many blocks a head and
// an embedding cost.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/process/cpu.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/layout/part_work.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/runtime.h"

namespace millrace {
namespace {

struct Shape {
  const char* name;
  Json config;
  std::int64_t rows, length;
};

Json LlamaOf(std::int64_t positions) {
  return {{"model_type", "llama"},    {"vocab_size", 32000},
          {"hidden_size", 512},       {"intermediate_size", 1376},
          {"num_hidden_layers", 8},   {"num_attention_heads", 8},
          {"num_key_value_heads", 8}, {"max_position_embeddings", positions}};
}

std::vector<Shape> Shapes() {
  const Json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 50257}, {"n_embd", 768},     {"n_layer", 12},
                     {"n_head", 12},         {"embd_pdrop", 0.0},   {"attn_pdrop", 0.0}, {"resid_pdrop", 0.0}};
  const Json bert = {{"model_type", "bert"},       {"architectures", {"BertForMaskedLM"}},
                     {"vocab_size", 30522},        {"hidden_size", 768},
                     {"intermediate_size", 3072},  {"num_hidden_layers", 12},
                     {"num_attention_heads", 12},  {"max_position_embeddings", 512},
                     {"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0}};
  return {{"Llama 58M", LlamaOf(512), 4, 512},
          {"Llama 58M", LlamaOf(2048), 1, 2048},
          {"GPT-2 124M", gpt2, 2, 512},
          {"BERT 110M", bert, 8, 128}};
}

class PartTimer {
 public:
  PartTimer(const Shape& shape, int rounds)
      : shape_(shape), rounds_(rounds), config_(engine::ParseModelConfig(shape.config, shape.name).value()) {
    const auto generator = at::detail::createCPUGenerator(1);
    const std::int64_t vocab = config_->sizes().vocab_size;
    batch_.inputs = at::randint(vocab, {shape.rows, shape.length}, generator, at::kLong);
    batch_.labels = batch_.inputs.roll(-1, 1).contiguous();
    if (config_->generates()) return;
    const auto predicted = static_cast<std::int64_t>(config_->Shape().predicted * static_cast<double>(shape.length));
    batch_.labels.narrow(1, predicted, shape.length - predicted).fill_(-100);
  }

  /// Returns the least time in seconds of a stage's forward and backward pass.
  double Time(const engine::ModelStage& stage) const {
    const auto model = engine::MakeModel(config_, at::kFloat, at::kCPU, 1, {.stages = {stage}}).value();
    model->buffer().EnableGradients();
    const std::int64_t tokens = shape_.rows * shape_.length, hidden = config_->sizes().hidden_size;
    double least = 1e30;
    for (int round = 0; round <= rounds_; ++round) {
      const at::Tensor input = stage.embeds ? at::Tensor() : at::randn({tokens, hidden}).requires_grad_();
      const at::Tensor gradient = stage.predicts ? at::Tensor() : at::randn({tokens, hidden});
      const auto start = std::chrono::steady_clock::now();
      model->Backward(0, model->Forward(0, batch_, input), gradient);
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least;
  }

  void Print() const {
    constexpr std::int64_t kBlocks = 2;  // the second one begins with a sum of two tensors, as most do
    const double block = Time({.first = 1, .last = 1 + kBlocks, .embeds = false, .predicts = false}) / kBlocks;
    const double head = Time({.first = 1, .last = 1, .embeds = false, .predicts = true});
    const double embedding = Time({.first = 0, .last = 0, .embeds = true, .predicts = false});
    const engine::PartWork work = engine::WorkOfParts(config_->Shape().Parts(shape_.length), {});
    fmt::print(
        "{:<11} {} x {:<5} block {:6.1f} ms, head {:6.1f} ms = {:.2f} blocks (by work {:.2f}), embedding {:.2f}\n",
        shape_.name, shape_.rows, shape_.length, 1e3 * block, 1e3 * head, head / block, work.head / work.block,
        embedding / block);
  }

 private:
  const Shape& shape_;
  const int rounds_;
  const std::shared_ptr<const engine::ModelConfig> config_;
  engine::ModelBatch batch_;
};

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (const auto ready = millrace::EnsureComputeEnvironment(argv); !ready) {
    fmt::print(stderr, "part_times: {}\n", ready.error().ToString());
    return 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines are seen as they come, also by a pipe
  int threads = 2, rounds = 5;
  CLI::App app("Times the parts of models beside the work that pipelines divide by");
  app.add_option("--threads", threads);
  app.add_option("--rounds", rounds);
  CLI11_PARSE(app, argc, argv);
  millrace::engine::ConfigureRuntime(threads);
  for (const millrace::Shape& shape : millrace::Shapes()) millrace::PartTimer(shape, rounds).Print();
}
