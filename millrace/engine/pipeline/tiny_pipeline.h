// Small models and samples for tests of the pipeline.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/pipeline/pipeline_runner.h"

namespace millrace::engine {

inline constexpr std::int64_t kTinyVocab = 61, kTinyHidden = 16, kTinyRows = 2, kTinyLength = 16;

/// A model with `layers` blocks, dropout and, in GPT-2 and BERT, a tied embedding.
inline std::shared_ptr<const ModelConfig> TinyConfig(std::string_view family, std::int64_t layers = 7) {
  Json json = {{"model_type", family}, {"vocab_size", kTinyVocab}};
  if (family == "gpt2" || family == "gptj") {
    json.update({{"n_embd", kTinyHidden}, {"n_layer", layers}, {"n_head", 2}, {"n_positions", 32}, {"rotary_dim", 4}});
    json.update({{"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}, {"resid_pdrop", 0.1}});
  } else {
    json.update({{"hidden_size", kTinyHidden}, {"intermediate_size", 24}, {"num_hidden_layers", layers}});
    json.update({{"num_attention_heads", 2}, {"max_position_embeddings", 32}, {"attention_dropout", 0.1}});
  }
  if (family == "bert") json["architectures"] = {"BertForPreTraining"};
  return ParseModelConfig(json, "config.json").value();
}

/// The batch of a micro-batch, with what it points to: rows, the first of two documents; a BERT also learns from the
/// rows.
struct TinySample {
  explicit TinySample(int micro_batch, std::int64_t rows = kTinyRows) {
    for (std::int64_t row = 0; row < rows; ++row)
      documents.push_back(static_cast<std::int32_t>((row + 1) * kTinyLength));
    const auto draw = [&](at::IntArrayRef shape, int place, std::int64_t high) {
      const auto seed = static_cast<std::uint64_t>(10 * micro_batch + place);
      return at::randint(high, shape, at::detail::createCPUGenerator(seed), at::kLong);
    };
    batch = {.inputs = draw({rows, kTinyLength}, 1, kTinyVocab),
             .labels = draw({rows, kTinyLength}, 2, kTinyVocab),
             .documents = documents,
             .segments = draw({rows, kTinyLength}, 3, 2),
             .row_labels = draw({rows}, 4, 2),
             .dropout = ops::DropoutRows{.seed = 5,
                                         .step = 2,
                                         .first_sample = static_cast<std::uint64_t>(2 * micro_batch),
                                         .row_length = kTinyLength}};
  }
  TinySample(const TinySample&) = delete;
  TinySample& operator=(const TinySample&) = delete;

  std::vector<std::int32_t> documents = {0, 7};
  ModelBatch batch;
};

/// A source of such batches.
inline Result<std::shared_ptr<const ModelBatch>> NextTiny(int micro_batch) {
  const auto sample = std::make_shared<TinySample>(micro_batch);
  return std::shared_ptr<const ModelBatch>(sample, &sample->batch);
}

/// Makes this rank's part of a model, with gradients.
inline std::unique_ptr<Model> TinyModel(const std::shared_ptr<const ModelConfig>& config, at::ScalarType dtype,
                                        const PipelineShape& shape, int rank, TensorRanks tensor = {}) {
  auto model =
      MakeModel(config, dtype, at::kCPU, 7,
                {.ranks = tensor,
                 .stages = StagesOfRank(*config, {.pipeline = shape.ranks, .virtual_stages = shape.virtual_stages},
                                        kTinyLength, rank)})
          .value();
  model->buffer().EnableGradients();
  return model;
}

inline PipelineOptions OptionsOf(const PipelineShape& shape) {
  return {.schedule = shape.schedule, .virtual_stages = shape.virtual_stages, .micro_batches = shape.micro_batches};
}

}  // namespace millrace::engine
