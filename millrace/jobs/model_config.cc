#include "millrace/jobs/model_config.h"

#include <string>
#include <string_view>

namespace millrace::jobs {
namespace {

/// Returns the size of SwiGLU's inner layer: 8/3 of the hidden size, so that three matrices have as many weights as the
/// two of a plain MLP (Shazeer 2020), rounded up to a multiple of 8 for the vector units.
int LlamaInner(int hidden_size) { return (hidden_size * 8 / 3 + 7) / 8 * 8; }

/// The heads follow from train.objective, when the model is made.
Json BertConfigOf(const ModelSpec& from, int positions) {
  Json json = {{"model_type", "bert"},
               {"vocab_size", from.vocab_size},
               {"hidden_size", from.hidden_size},
               {"intermediate_size", from.intermediate_size.value_or(4 * from.hidden_size)},
               {"num_hidden_layers", from.num_layers},
               {"num_attention_heads", from.num_heads},
               {"max_position_embeddings", positions}};
  const auto set = [&](std::string_view key, const std::optional<double>& value) {
    if (value) json[std::string(key)] = *value;
  };
  set("hidden_dropout_prob", from.hidden_dropout_prob);
  set("attention_probs_dropout_prob", from.attention_probs_dropout_prob);
  set("classifier_dropout", from.classifier_dropout);
  return json;
}

}  // namespace

Json ModelConfigOf(const Spec& spec) {
  const ModelSpec& from = spec.model;
  const int positions =
      from.max_position_embeddings > 0 ? from.max_position_embeddings : spec.data.dataset.sequence_length;
  if (from.family == "llama") {
    return {{"model_type", "llama"},
            {"vocab_size", from.vocab_size},
            {"hidden_size", from.hidden_size},
            {"intermediate_size", from.intermediate_size.value_or(LlamaInner(from.hidden_size))},
            {"num_hidden_layers", from.num_layers},
            {"num_attention_heads", from.num_heads},
            {"num_key_value_heads", from.num_kv_heads},
            {"max_position_embeddings", positions},
            {"rms_norm_eps", from.rms_norm_eps},
            {"rope_theta", from.rope_theta},
            {"tie_word_embeddings", from.tie_word_embeddings.value_or(false)}};
  }
  if (from.family == "bert") return BertConfigOf(from, positions);
  // GPT-2 and GPT-J have the same keys.
  Json json = {
      {"model_type", from.family},  {"vocab_size", from.vocab_size},
      {"n_embd", from.hidden_size}, {"n_inner", from.intermediate_size.value_or(4 * from.hidden_size)},
      {"n_layer", from.num_layers}, {"n_head", from.num_heads},
      {"n_positions", positions},   {"tie_word_embeddings", from.tie_word_embeddings.value_or(from.family == "gpt2")}};
  const auto set = [&](std::string_view key, const auto& value) {
    if (value) json[std::string(key)] = *value;
  };
  set("rotary_dim", from.rotary_dim);
  set("embd_pdrop", from.embd_pdrop);
  set("attn_pdrop", from.attn_pdrop);
  set("resid_pdrop", from.resid_pdrop);
  return json;
}

void SetHeads(Json& config, const Spec& spec) {
  const data::DatasetOptions& data = spec.data.dataset;
  const Json* type = JsonFind(config, "model_type");
  if (type == nullptr || *type != "bert") return;
  if (data.objective == data::Objective::kClassification) {
    config["architectures"] = Json::array({"BertForSequenceClassification"});
    config["num_labels"] = spec.Classes();
  } else if (data.objective == data::Objective::kMlm) {
    config["architectures"] = Json::array({data.mlm.next_sentence ? "BertForPreTraining" : "BertForMaskedLM"});
  }
}

}  // namespace millrace::jobs
