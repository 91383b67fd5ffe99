#include "millrace/engine/families/bert/bert_config.h"

#include <fmt/format.h>

#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/layers/attention.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layers/mlp.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/ops/cross_entropy.h"

namespace millrace::engine {
namespace {

/// The places where elements are dropped: two of the model, three of each block.
enum BertSite : std::uint64_t { kBertEmbedding, kBertPooled, kBertAttention, kBertAttentionOutput, kBertMlpOutput };
constexpr std::uint64_t kBertSitesPerBlock = 3;

struct BertBlock {
  SelfAttention attention;
  Norm attention_norm;
  Mlp mlp;
  Norm mlp_norm;
  std::uint64_t first_site = 0;
};

class Bert final : public Model {
 public:
  Bert(std::shared_ptr<const ModelConfig> self, const BertConfig& config)
      : Model(std::move(self)),
        config_(config),
        table_{.name = "bert.embeddings.word_embeddings.weight",
               .rows = config.vocab_size,
               .columns = config.hidden_size,
               .tied = config.predicts_tokens()},
        blocks_(static_cast<std::size_t>(config.num_layers)) {}

 private:
  void MakeEmbedding(LayerFactory& make) override {
    const std::int64_t hidden = config_.hidden_size;
    tokens_ = make.MakeTokenEmbedding(table_);
    positions_ = make.MakeEmbedding("bert.embeddings.position_embeddings.weight", config_.max_positions, hidden);
    segments_ = make.MakeEmbedding("bert.embeddings.token_type_embeddings.weight", config_.segments, hidden);
    embedding_norm_ = make.MakeLayerNorm("bert.embeddings.LayerNorm", hidden, config_.layer_norm_eps);
  }

  void MakeHead(LayerFactory& make) override {
    const std::int64_t hidden = config_.hidden_size;
    make.SeeWholeTokens();  // the heads are small: every rank computes all of them, but for the products with the table
    if (config_.predicts_rows()) pooler_ = make.MakeLinear({hidden, {{"bert.pooler.dense", hidden}}, true});
    if (config_.predicts_tokens()) {
      transform_ = make.MakeLinear({hidden, {{"cls.predictions.transform.dense", hidden}}, true});
      transform_norm_ = make.MakeLayerNorm("cls.predictions.transform.LayerNorm", hidden, config_.layer_norm_eps);
      decoder_ = make.MakeTiedHead(table_, "cls.predictions.bias", "");
    }
    const auto row_head = [&](const char* name, std::int64_t classes) {
      return LinearSpec{.in_features = hidden, .outputs = {{name, classes}}, .bias = true, .predicts = true};
    };
    if (config_.heads == BertHeads::kPreTraining) {
      row_head_ = make.MakeLinear(row_head("cls.seq_relationship", 2));
    } else if (config_.heads == BertHeads::kClassification) {
      row_head_ = make.MakeLinear(row_head("classifier", config_.num_labels));
    }
  }

  void MakeBlock(std::int64_t layer, LayerFactory& make) override {
    const ModelSizes sizes = config_.sizes();
    const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
    const auto name = [&](std::string_view part) { return fmt::format("bert.encoder.layer.{}.{}", layer, part); };
    BertBlock& block = blocks_[static_cast<std::size_t>(layer)];
    block.first_site = static_cast<std::uint64_t>(layer) * kBertSitesPerBlock;
    const auto columns = [&](std::vector<LinearSpec::Output> outputs) {
      return make.MakeLinear(
          {.in_features = hidden, .outputs = std::move(outputs), .bias = true, .division = LinearDivision::kColumns});
    };
    const auto rows = [&](std::string_view part, std::int64_t in) {
      return make.MakeLinear(
          {.in_features = in, .outputs = {{name(part), hidden}}, .bias = true, .division = LinearDivision::kRows});
    };
    block.attention = {.layer = layer,
                       .layout = {make.Share(sizes.num_heads), make.Share(sizes.num_heads), sizes.head_dim},
                       .rule = {.causal = false},
                       .query_key_value = columns({{name("attention.self.query"), hidden},
                                                   {name("attention.self.key"), hidden},
                                                   {name("attention.self.value"), hidden}}),
                       .output = rows("attention.output.dense", hidden),
                       .dropout = config_.attention_dropout,
                       .dropout_site = block.first_site + kBertAttention,
                       .first_head = make.ranks().rank() * make.Share(sizes.num_heads)};
    block.attention_norm = make.MakeLayerNorm(name("attention.output.LayerNorm"), hidden, config_.layer_norm_eps);
    block.mlp = {.up = columns({{name("intermediate.dense"), inner}}),
                 .down = rows("output.dense", inner),
                 .activation = config_.activation};
    block.mlp_norm = make.MakeLayerNorm(name("output.LayerNorm"), hidden, config_.layer_norm_eps);
  }

  Stream Embed(const at::Tensor& inputs, const at::Tensor& segments, const ForwardContext& context) const override {
    TORCH_CHECK(context.sequences.limit() <= config_.max_positions, "positions up to ", context.sequences.limit(),
                " exceed the model's ", config_.max_positions);
    const at::Tensor ids = inputs.reshape({-1});
    const at::Tensor where = context.sequences.PositionsOn(inputs.device()).to(at::kLong);
    const at::Tensor kinds = segments.defined() ? segments.reshape({-1}) : at::zeros_like(ids);
    const at::Tensor embedded = tokens_.Forward(ids, context) + segments_.Forward(kinds);
    const at::Tensor x = embedding_norm_.Forward(embedded, positions_.Forward(where)).out;
    return {.residual = ops::Dropout(x, context.DropoutAt(kBertEmbedding, config_.hidden_dropout))};
  }

  Stream Block(std::int64_t layer, const Stream& x, const ForwardContext& context) const override {
    const BertBlock& block = blocks_[static_cast<std::size_t>(layer)];
    const auto drop = [&](const at::Tensor& y, BertSite site) {
      return ops::Dropout(y, context.DropoutAt(block.first_site + site, config_.hidden_dropout));
    };
    const at::Tensor attended = drop(block.attention.Forward(x.residual, context), kBertAttentionOutput);
    const at::Tensor middle = block.attention_norm.Forward(x.residual, attended).out;
    return {.residual = block.mlp_norm.Forward(middle, drop(block.mlp.Forward(middle, context), kBertMlpOutput)).out};
  }

  at::Tensor Loss(const Stream& x, const ModelBatch& batch, const ForwardContext& context) const override {
    const at::Tensor hidden = ranks().divides_tokens() ? ops::JoinRows(x.residual, ranks()) : x.residual;
    at::Tensor loss;
    if (config_.predicts_tokens() && batch.labels.defined()) {
      loss = TokenLoss(hidden, batch, context);
    }
    if (config_.predicts_rows() && batch.row_labels.defined()) {
      const ops::DropoutSite drop = config_.heads == BertHeads::kClassification
                                        ? context.DropoutAt(kBertPooled, config_.classifier_dropout)
                                        : ops::DropoutSite{};
      const at::Tensor pooled = Drop(Pool(hidden, batch.inputs.size(0), context), drop);
      const at::Tensor row_loss =
          ops::LinearCrossEntropy(pooled, row_head_.weight(), row_head_.bias(), batch.row_labels, batch.loss,
                                  batch.predictions != nullptr ? &batch.predictions->rows : nullptr) *
          batch.row_loss_weight;
      loss = loss.defined() ? loss + row_loss : row_loss;
    }
    TORCH_CHECK(loss.defined(), "the batch has no labels for the heads of this model");
    return loss;
  }

  at::Tensor Scores(const Stream& x, const ForwardContext& context, const at::Tensor&) const override {
    TORCH_CHECK(config_.heads != BertHeads::kNone, "a BertModel has no head that predicts");
    if (!config_.predicts_tokens()) {
      return row_head_.Forward(Pool(x.residual, context.sequences.count(), context), context);
    }
    return decoder_.Forward(Transform(x.residual, context), context);
  }

  /// Adapters drop nothing here: x has only some of the tokens.
  at::Tensor Transform(const at::Tensor& x, ForwardContext context) const {
    context.dropout = std::nullopt;
    return transform_norm_.Forward(ops::Activate(transform_.Forward(x, context), config_.activation)).out;
  }
  /// Only masked tokens reach the head: about one in seven.
  at::Tensor TokenLoss(const at::Tensor& hidden, const ModelBatch& batch, const ForwardContext& context) const {
    const at::Tensor labels = batch.labels.reshape({-1});
    const at::Tensor masked = at::nonzero(labels != ops::kIgnoreLabel).view({-1});
    if (masked.numel() == 0) return hidden.narrow(0, 0, 0).sum(at::kFloat);  // 0, and so is its gradient
    const at::Tensor transformed =
        ops::CopyToRanks(Transform(hidden.index_select(0, ToDevice(masked, hidden.device())), context), ranks());
    return ops::DividedCrossEntropy(transformed, decoder_.weight(), decoder_.bias(), labels.index_select(0, masked),
                                    config_.vocab_size, ranks(), batch.loss,
                                    batch.predictions != nullptr ? &batch.predictions->tokens : nullptr);
  }
  /// Returns [rows, hidden]: what the first token of each row says of the row.
  at::Tensor Pool(const at::Tensor& hidden, std::int64_t rows, ForwardContext context) const {
    const at::Tensor first = hidden.view({rows, -1, config_.hidden_size}).select(1, 0).contiguous();
    if (context.dropout) context.dropout->row_length = 1;
    return at::tanh(pooler_.Forward(first, context));
  }
  /// Dropout of one element a row: to Philox each row is a sample of one token.
  static at::Tensor Drop(const at::Tensor& pooled, ops::DropoutSite site) {
    site.rows.row_length = 1;
    site.first_token = 0;
    return ops::Dropout(pooled, site);
  }

  const BertConfig& config_;
  const TokenTable table_;
  Embedding tokens_, positions_, segments_;
  Norm embedding_norm_;
  std::vector<BertBlock> blocks_;  ///< by layer; those of other ranks are empty
  Linear pooler_, transform_, decoder_, row_head_;
  Norm transform_norm_;
};

}  // namespace

std::unique_ptr<Model> BuildBert(std::shared_ptr<const ModelConfig> config) {
  const auto& own = static_cast<const BertConfig&>(*config);
  return std::make_unique<Bert>(std::move(config), own);
}

}  // namespace millrace::engine
