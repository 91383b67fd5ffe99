// What the planner says of a model beside what the engine does: parameters, exchanges, and memory that a forward pass
// keeps.
#include <gtest/gtest.h>
#include <torch/version.h>

#include <barrier>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#include "millrace/collectives/connect.h"
#include "millrace/collectives/testing/counting.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/layout/pipeline_passes.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/models/preference.h"
#include "millrace/engine/testing/in_memory_codes.h"
#include "millrace/plan/layout_cost.h"
#include "millrace/plan/plan.h"
#include "tests/engine/counting_allocator.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kVocabulary = 4096, kLength = 64, kRows = 2;
constexpr int kBlocks = 3;

Json ConfigOf(std::string_view family) {
  Json json = {{"model_type", family}, {"vocab_size", kVocabulary}};
  if (family == "gpt2" || family == "gptj") {
    json.update({{"n_embd", 64}, {"n_layer", kBlocks}, {"n_head", 4}, {"n_positions", 128}, {"rotary_dim", 8}});
    json.update({{"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}, {"resid_pdrop", 0.0}});
  } else {
    json.update({{"hidden_size", 64}, {"intermediate_size", 160}, {"num_hidden_layers", kBlocks}});
    json.update({{"num_attention_heads", 4}, {"max_position_embeddings", 128}});
    if (family == "bert") {
      json.update({{"architectures", {"BertForMaskedLM"}}, {"hidden_dropout_prob", 0.0}});
      json["attention_probs_dropout_prob"] = 0.0;
    } else {
      json.update({{"num_key_value_heads", 4}, {"head_dim", 16}, {"tie_word_embeddings", family == "qwen3"}});
      if (family == "olmo2" || family == "gemma3_text") json["num_key_value_heads"] = 2;  // four ranks repeat heads
      if (family == "phi3") json["resid_pdrop"] = 0.0;
      if (family == "llama") json.update({{"num_key_value_heads", 2}, {"attention_bias", true}, {"mlp_bias", true}});
    }
  }
  return json;
}

/// What ranks did, all of them together but for what is said of rank 0.
struct Observed {
  std::vector<std::int64_t> elements;  ///< of each rank's buffer
  std::vector<std::int64_t> trained;   ///< of each rank's buffer, of what has gradients
  std::int64_t partial = 0;            ///< of rank 0
  std::int64_t kept = 0;               ///< bytes of tensors after a forward pass
  collectives::Traffic traffic;        ///< of rank 0
};

struct Case {
  const char* family;
  int tensor;
  bool sequence;
  Recompute recompute;
  bool bf16;
  std::vector<std::string> freeze = {};
  std::optional<LoraOptions> lora = {};
  bool quantized = false;  ///< the matrices of blocks are NF4
};

/// Returns codes of the matrices of a model's blocks.
std::shared_ptr<const QuantizedWeights> QuantizedBlocks(const std::shared_ptr<const ModelConfig>& config) {
  auto codes = std::make_shared<QuantizedWeights>();
  const auto model = MakeModel(config, at::kFloat, at::kCPU, 7).value();
  for (const NamedParameter& parameter : model->Parameters()) {
    if (parameter.tensor.dim() == 2 && parameter.name.contains(".layers."))
      codes->emplace(parameter.name, testing::ToNf4(parameter.tensor));
  }
  return codes;
}

void Observe(const Case& c, const Json& json, Observed& seen) {
  const auto config = ParseModelConfig(json, "config.json").value();
  const auto codes = c.quantized ? QuantizedBlocks(config) : nullptr;
  const at::Tensor ids = at::randint(kVocabulary, {kRows, kLength}, at::detail::createCPUGenerator(3), at::kLong);
  at::Tensor labels = ids.roll(1, 1).contiguous();
  if (std::string_view(c.family) == "bert") {  // as many tokens are predicted as the plan says: 0.15 of 128
    labels.view({-1}).narrow(0, 19, kRows * kLength - 19).fill_(-100);
  }
  seen.elements.resize(static_cast<std::size_t>(c.tensor));
  seen.trained.resize(static_cast<std::size_t>(c.tensor));
  auto groups = collectives::ConnectThreads(c.tensor);
  const auto traffic = std::shared_ptr<collectives::Traffic>(std::shared_ptr<void>(), &seen.traffic);
  std::barrier together(c.tensor);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < c.tensor; ++rank) {
    threads.emplace_back([&, rank, inner = std::move(groups[static_cast<std::size_t>(rank)])]() mutable {
      const auto group = rank == 0 ? collectives::MakeCounting(std::move(inner), traffic) : std::move(inner);
      const TensorRanks ranks{c.tensor > 1 ? group.get() : nullptr, c.sequence};
      auto model = MakeModel(config, c.bf16 ? at::kBFloat16 : at::kFloat, at::kCPU, 7,
                             ModelShare{.ranks = ranks, .freeze = c.freeze, .lora = c.lora, .quantized = codes})
                       .value();
      model->SetRecompute(c.recompute);
      model->buffer().EnableGradients();
      seen.elements[static_cast<std::size_t>(rank)] = model->buffer().size();
      seen.trained[static_cast<std::size_t>(rank)] = model->buffer().trained_size();
      if (rank == 0) {
        for (const NamedParameter& parameter : model->Parameters()) {
          if (parameter.partial_gradient && parameter.trainable)
            seen.partial += parameter.elements() * c.tensor / parameter.Holders(c.tensor);
        }
      }
      together.arrive_and_wait();
      if (rank == 0) seen.kept = -CountingAllocator::live;
      together.arrive_and_wait();
      ModelBatch batch{.inputs = ids, .labels = labels};
      if (c.lora && c.lora->dropout > 0) batch.dropout = {.seed = 7, .row_length = kLength};
      const at::Tensor loss = model->LossSum(batch);
      together.arrive_and_wait();
      if (rank == 0) seen.kept += CountingAllocator::live;
      together.arrive_and_wait();
      loss.backward();
    });
  }
}

class PlanAgreementTest : public ::testing::TestWithParam<const char*> {};

void Compare(const Case& c) {
  SCOPED_TRACE(fmt::format(
      "{} tensor {} sequence {} recompute {} bf16 {} globs of frozen names {} {}", c.family, c.tensor, c.sequence,
      RecomputeName(c.recompute), c.bf16, c.freeze.size(),
      c.lora ? fmt::format("targets {} dropout {} dora {}", c.lora->targets.front(), c.lora->dropout, c.lora->dora)
             : ""));
  const Json json = ConfigOf(c.family);
  Observed seen;
  Observe(c, json, seen);

  plan::TrainingSetup setup{.model = ParseModelConfig(json, "config.json").value()->Shape(),
                            .ranks = c.tensor,
                            .ranks_per_machine = c.tensor,
                            .global_batch = kRows,
                            .micro_batch = kRows,
                            .sequence_length = kLength,
                            .bf16 = c.bf16};
  setup.model.Freeze(c.freeze);
  if (c.lora) setup.model.Adapt(*c.lora, c.quantized ? BitsPerElement(Quantization::kNf4) : 0);
  const auto layout =
      plan::MakeLayout(setup, {.tensor = c.tensor, .sequence = c.sequence, .recompute = c.recompute}).value();
  std::int64_t kept = 0;
  plan::Exchanges exchanges;
  for (int rank = 0; rank < c.tensor; ++rank) {
    const plan::LayoutCost cost = plan::CostOfLayout(setup, layout.options, nullptr, rank);
    const plan::RankShare share = plan::SharesOf(setup, layout, cost).front();
    EXPECT_EQ(share.elements, seen.elements[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(share.trained, seen.trained[static_cast<std::size_t>(rank)]);
    kept += cost.embedding.kept_bytes + cost.head.kept_bytes + plan::KeptByBlocks(cost, share) +
            plan::InputBytes(setup, layout, share);
    if (rank > 0) continue;
    exchanges.Add(cost.embedding.forward);
    exchanges.Add(cost.embedding.backward);
    exchanges.Add(cost.blocks[0].once.forward, kBlocks + share.recomputed);
    exchanges.Add(cost.blocks[0].once.backward, kBlocks);
    exchanges.Add(cost.head.forward);
    exchanges.Add(cost.head.backward);
    EXPECT_EQ(
        cost.embedding.partial_elements + kBlocks * cost.blocks[0].once.partial_elements + cost.head.partial_elements,
        seen.partial);
  }
  const auto equal = [&](collectives::Traffic::Kind kind, const plan::Exchanges::Count& count) {
    EXPECT_EQ(count.operations, seen.traffic.operations(kind)) << "operations of kind " << kind;
    EXPECT_EQ(count.bytes, seen.traffic.bytes(kind)) << "bytes of kind " << kind;
  };
  equal(collectives::Traffic::kAllReduce, exchanges.all_reduce);
  equal(collectives::Traffic::kAllGather, exchanges.all_gather);
  equal(collectives::Traffic::kReduceScatter, exchanges.reduce_scatter);
  // Of small things, such as positions and bounds of documents, the plan knows nothing. Where most is frozen, they are
  // a larger part of what is left.
  const bool is_whole = c.freeze.empty() && !c.lora;
  const double share = is_whole ? 0.02 : 0.03, small = is_whole ? 0 : (6 << 10) * (1 + c.tensor);
  EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(seen.kept),
              small + share * static_cast<double>(seen.kept));
}

TEST_P(PlanAgreementTest, ParametersExchangesAndMemoryAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  for (const int tensor : {1, 2, 4}) {
    for (const bool sequence : {false, true}) {
      if (sequence && tensor == 1) continue;
      for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        Compare({GetParam(), tensor, sequence, recompute, (tensor + static_cast<int>(recompute)) % 2 == 0});
      }
    }
  }
}

/// Globs over the names of all families: attention, which is most; all but attention; norms and biases.
const std::vector<std::vector<std::string>>& FrozenParts() {
  static const std::vector<std::vector<std::string>> kParts = {
      {"*attn*", "*attention.*"},
      {"*embed*", "*wte*", "*wpe*", "*mlp*", "*intermediate*", "*layer.?.output*", "*norm*", "*ln_*", "lm_head*",
       "cls*"},
      {"*norm*", "*ln_*", "*LayerNorm*", "*.bias"}};
  return kParts;
}

TEST_P(PlanAgreementTest, FrozenParametersAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  for (const std::vector<std::string>& freeze : FrozenParts()) {
    for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      Compare({GetParam(), 1, false, recompute, false, freeze});
      Compare({GetParam(), 2, recompute != Recompute::kNone, recompute, true, freeze});
    }
  }
}

TEST_P(PlanAgreementTest, AdaptersAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  // Outputs of the same product may be adapted or not: values alone, and of GPT-2 the three together.
  const std::vector<std::string> some = {"v_proj", "value", "c_attn", "down_proj", "out_proj"}, head = {"lm_head"};
  for (const LoraOptions& lora : {LoraOptions{.rank = 8}, LoraOptions{.rank = 16, .dropout = 0.1, .targets = some},
                                  LoraOptions{.rank = 8, .dropout = 0.1, .dora = true, .targets = some},
                                  LoraOptions{.rank = 8, .dropout = 0.1, .targets = head}}) {
    if (lora.targets == head && std::string_view(GetParam()) == "bert") continue;  // its head has another name
    for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      Compare({GetParam(), 1, false, recompute, recompute == Recompute::kSelective, {}, lora});
      Compare({GetParam(), 2, false, recompute, true, {}, lora});
      Compare({GetParam(), 4, true, recompute, false, {}, lora});
    }
  }
}

TEST_P(PlanAgreementTest, AdaptersOverCodesAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  if (!std::string_view("llama mistral qwen2 qwen3 olmo2 phi3").contains(GetParam())) GTEST_SKIP() << "is Llama's";
  for (const LoraOptions& lora :
       {LoraOptions{.rank = 8}, LoraOptions{.rank = 8, .dropout = 0.1}, LoraOptions{.rank = 8, .dora = true}}) {
    for (const bool bf16 : {false, true}) {
      for (const int tensor : {1, 2}) {
        Compare({GetParam(), tensor, tensor > 1 && bf16, Recompute::kNone, bf16, {}, lora, /*quantized=*/true});
      }
    }
  }
}

/// Each part's names, and those of single blocks.
TEST_P(PlanAgreementTest, NamesAreThoseOfTheEngine) {
  const Json json = ConfigOf(GetParam());
  const auto config = ParseModelConfig(json, "config.json").value();
  std::vector<std::vector<std::string>> all = FrozenParts();
  all.push_back({"*.1.*"});
  const auto whole = MakeModel(config, at::kFloat, at::kCPU, 7).value();
  for (const NamedParameter& parameter : whole->Parameters()) {
    const std::string_view name = parameter.name;
    const bool is_joined = name.contains("q_proj") || name.contains("k_proj") || name.contains("v_proj") ||
                           name.contains("gate_proj") || name.contains("up_proj") || name.contains(".self.");
    if (!is_joined) all.push_back({parameter.name});
  }
  for (const std::vector<std::string>& freeze : all) {
    const auto model = MakeModel(config, at::kFloat, at::kCPU, 7, {.freeze = freeze}).value();
    std::int64_t trained = 0;
    for (const NamedParameter& parameter : model->Parameters())
      trained += parameter.trainable ? parameter.elements() : 0;
    plan::ModelShape shape = config->Shape();
    shape.Freeze(freeze);
    EXPECT_EQ(shape.TrainedCount(), trained) << freeze.front();
  }
}

/// What decides which moment of a step needs most memory.
struct ModelScale {
  std::int64_t vocabulary, hidden, inner, tokens, rows, blocks;
};

/// Returns the bytes, at most, that live within one product and are not planned. Of bfloat16: the float32 copies of
/// processors that do not multiply it, or what oneDNN takes for a tile of each thread, whatever the model (libtorch 2).
double WithinProduct(bool bf16, double seen) {
  if (!bf16) return 0;
  if (plan::Machine::ThisMachine().copies_bf16) return 0.08 * seen;
  return TORCH_VERSION_MAJOR < 2 ? 0 : 512 << 10;
}

/// The most that is live in a forward and a backward pass. The models' peaks are in their heads, in their blocks, and
/// in a block that is alone.
TEST(PlanAgreement, PeaksAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  for (const ModelScale& scale : {ModelScale{8192, 64, 176, 128, 4, 2}, ModelScale{1024, 128, 352, 512, 1, 4},
                                  ModelScale{512, 160, 640, 64, 8, 1}}) {
    for (const std::string_view family : {"llama", "qwen3", "gpt2", "gptj", "bert"}) {
      Json json = ConfigOf(family);
      json.update(
          {{"vocab_size", scale.vocabulary}, {"intermediate_size", scale.inner}, {"head_dim", scale.hidden / 4}});
      json.update({{"hidden_size", scale.hidden}, {"n_embd", scale.hidden}});
      json.update({{"num_hidden_layers", scale.blocks}, {"n_layer", scale.blocks}});
      json.update({{"max_position_embeddings", scale.tokens}, {"n_positions", scale.tokens}});
      const auto config = ParseModelConfig(json, "config.json").value();
      for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const bool bf16 : {false, true}) {
          const auto model = MakeModel(config, bf16 ? at::kBFloat16 : at::kFloat, at::kCPU, 7).value();
          model->SetRecompute(recompute);
          model->buffer().EnableGradients();
          const at::Tensor ids =
              at::randint(scale.vocabulary, {scale.rows, scale.tokens}, at::detail::createCPUGenerator(3), at::kLong);
          at::Tensor labels = ids.clone();
          const plan::TrainingSetup setup{.model = ParseModelConfig(json, "config.json").value()->Shape(),
                                          .global_batch = scale.rows,
                                          .micro_batch = scale.rows,
                                          .sequence_length = scale.tokens,
                                          .bf16 = bf16};
          const auto predicted = std::llround(setup.model.predicted * static_cast<double>(ids.numel()));
          labels.view({-1}).narrow(0, predicted, ids.numel() - predicted).fill_(-100);
          const std::int64_t before = CountingAllocator::live;
          CountingAllocator::peak = 0;
          model->LossSum(ids, labels).backward();
          const auto seen = static_cast<double>(CountingAllocator::peak - before);
          const auto planned = plan::MakePlan(setup, {.recompute = recompute}, plan::Machine::ThisMachine()).value();
          const auto bytes = static_cast<double>(planned.memory[0][plan::MemoryKind::kActivations] +
                                                 planned.memory[0][plan::MemoryKind::kWorking]);
          // Not each moment is followed of blocks that compute norms again.
          EXPECT_NEAR(bytes, seen, 0.02 * seen + WithinProduct(bf16, seen))
              << family << " hidden " << scale.hidden << " recompute " << RecomputeName(recompute) << " bf16 " << bf16;
        }
      }
    }
  }
}

/// The same for pairs of answers, whose reference passes first. Their head is frozen.
TEST(PlanAgreement, PeaksOfPairsAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  for (const ModelScale& scale : {ModelScale{8192, 64, 176, 128, 4, 2}, ModelScale{1024, 128, 352, 512, 1, 4}}) {
    for (const std::string_view family : {"llama", "qwen3", "gpt2", "gptj"}) {
      Json json = ConfigOf(family);
      json.update(
          {{"vocab_size", scale.vocabulary}, {"intermediate_size", scale.inner}, {"head_dim", scale.hidden / 4}});
      json.update({{"hidden_size", scale.hidden}, {"n_embd", scale.hidden}});
      json.update({{"num_hidden_layers", scale.blocks}, {"n_layer", scale.blocks}});
      json.update({{"max_position_embeddings", scale.tokens}, {"n_positions", scale.tokens}});
      const auto config = ParseModelConfig(json, "config.json").value();
      const std::vector<std::string> freeze = {"*embed*", "*wte*", "*wpe*", "lm_head*"};
      std::vector<std::int32_t> documents, answers(static_cast<std::size_t>(2 * scale.rows));
      for (std::int64_t begin = 0; begin <= scale.rows * scale.tokens; begin += scale.tokens / 2) {
        documents.push_back(static_cast<std::int32_t>(begin));
      }
      std::iota(answers.begin(), answers.end(), 0);
      for (const auto recompute : {Recompute::kNone, Recompute::kFull}) {
        for (const bool bf16 : {false, true}) {
          const auto model =
              MakeModel(config, bf16 ? at::kBFloat16 : at::kFloat, at::kCPU, 7, {.freeze = freeze}).value();
          model->SetRecompute(recompute);
          model->buffer().EnableGradients();
          const at::Tensor ids =
              at::randint(scale.vocabulary, {scale.rows, scale.tokens}, at::detail::createCPUGenerator(3), at::kLong);
          at::Tensor labels = ids.clone();
          labels.select(1, 0).fill_(-100);
          const at::Tensor row_labels = at::zeros({scale.rows}, at::kLong);
          plan::TrainingSetup setup{.model = config->Shape(),
                                    .global_batch = scale.rows,
                                    .micro_batch = scale.rows,
                                    .sequence_length = scale.tokens,
                                    .bf16 = bf16,
                                    .compares_pairs = true};
          setup.model.Freeze(freeze);
          Preferences preferences;
          ModelBatch batch{.inputs = ids,
                           .labels = labels,
                           .documents = documents,
                           .row_labels = row_labels,
                           .preferences = &preferences,
                           .answers = answers};
          const std::int64_t before = CountingAllocator::live;
          const auto pass = [&](bool as_reference) {
            batch.as_reference = as_reference;
            CountingAllocator::peak = 0;
            if (as_reference) {
              const at::NoGradGuard no_gradients;
              model->LossSum(batch);
            } else {
              model->LossSum(batch).backward();
            }
            return static_cast<double>(CountingAllocator::peak - before);
          };
          const double reference = pass(true), seen = pass(false);
          const auto planned = plan::MakePlan(setup, {.recompute = recompute}, plan::Machine::ThisMachine()).value();
          const auto bytes = static_cast<double>(planned.memory[0][plan::MemoryKind::kActivations] +
                                                 planned.memory[0][plan::MemoryKind::kWorking]);
          EXPECT_NEAR(bytes, seen, 0.03 * seen + WithinProduct(bf16, seen))
              << family << " hidden " << scale.hidden << " recompute " << RecomputeName(recompute) << " bf16 " << bf16;
          EXPECT_LE(reference, seen) << family << " hidden " << scale.hidden << " recompute "
                                     << RecomputeName(recompute) << " bf16 " << bf16;
        }
      }
    }
  }
}

/// The same of runs that train adapters, with the memory of weights, gradients and codes.
TEST(PlanAgreement, PeaksOfAdaptersAreThoseOfTheEngine) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  const ModelScale scale{1024, 128, 352, 512, 1, 4};
  Json json = ConfigOf("llama");
  json.update({{"vocab_size", scale.vocabulary}, {"intermediate_size", scale.inner}, {"head_dim", scale.hidden / 4}});
  json.update({{"hidden_size", scale.hidden}, {"num_hidden_layers", scale.blocks}});
  json.update({{"max_position_embeddings", scale.tokens}, {"attention_bias", false}, {"mlp_bias", false}});
  const auto config = ParseModelConfig(json, "config.json").value();
  const auto codes = QuantizedBlocks(config);
  for (const double dropout : {0.0, 0.1}) {
    for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const bool bf16 : {false, true}) {
        for (const bool quantized : {false, true}) {
          const LoraOptions lora{.rank = 16, .dropout = dropout};
          plan::TrainingSetup setup{.model = config->Shape(),
                                    .global_batch = scale.rows,
                                    .micro_batch = scale.rows,
                                    .sequence_length = scale.tokens,
                                    .bf16 = bf16};
          setup.model.Adapt(lora, quantized ? BitsPerElement(Quantization::kNf4) : 0);
          const std::int64_t before = CountingAllocator::live;
          const auto model = MakeModel(config, bf16 ? at::kBFloat16 : at::kFloat, at::kCPU, 7,
                                       {.lora = lora, .quantized = quantized ? codes : nullptr})
                                 .value();
          model->SetRecompute(recompute);
          model->buffer().EnableGradients();
          const std::int64_t held = CountingAllocator::live - before;
          const at::Tensor ids =
              at::randint(scale.vocabulary, {scale.rows, scale.tokens}, at::detail::createCPUGenerator(3), at::kLong);
          CountingAllocator::peak = 0;
          ModelBatch batch{.inputs = ids, .labels = ids};
          if (dropout > 0) batch.dropout = {.seed = 7, .row_length = scale.tokens};
          model->LossSum(batch).backward();
          const auto seen = static_cast<double>(CountingAllocator::peak - before - held);
          const auto planned = plan::MakePlan(setup, {.recompute = recompute}, plan::Machine::ThisMachine()).value();
          const plan::MemoryUse& use = planned.memory[0];
          const std::string what = fmt::format("dropout {} recompute {} bf16 {} quantized {}", dropout,
                                               RecomputeName(recompute), bf16, quantized);
          EXPECT_NEAR(static_cast<double>(use[plan::MemoryKind::kActivations] + use[plan::MemoryKind::kWorking]), seen,
                      0.03 * seen + WithinProduct(bf16, seen))
              << what;
          // Codes are mapped files: not among the tensors.
          std::int64_t code_bytes = 0;
          for (const auto& [name, matrix] : *codes) {
            if (quantized) code_bytes += BitsPerElement(Quantization::kNf4) / 8 * matrix->rows() * matrix->columns();
          }
          const std::int64_t planned_held =
              use[plan::MemoryKind::kWeights] + use[plan::MemoryKind::kGradients] - code_bytes;
          const std::int64_t positions = scale.tokens * scale.hidden / 4 * 4;  // sines and cosines
          EXPECT_NEAR(static_cast<double>(planned_held), static_cast<double>(held - positions),
                      0.01 * static_cast<double>(held))
              << what;
        }
      }
    }
  }
}

/// The micro-batches that a rank has in flight, by the order of passes that the engine runs.
TEST(PlanAgreement, MicrobatchesInFlightAreThoseOfTheSchedules) {
  for (const auto schedule : {PipelineSchedule::kSimple, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
                              PipelineSchedule::kZeroBubble}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int micro_batches : {1, 2, 3, 4, 8, 13}) {
        const int stages = schedule == PipelineSchedule::kInterleaved && ranks > 1 ? 2 : 1;
        if (stages > 1 && micro_batches % ranks != 0) continue;  // the published schedule needs a multiple
        const plan::Layout layout{.options = {.pipeline = ranks, .schedule = schedule, .virtual_stages = stages},
                                  .microbatches = micro_batches};
        for (int rank = 0; rank < ranks; ++rank) {
          int live = 0, most = 0;
          for (const PipelinePass& pass : TrainingPasses({schedule, ranks, stages, micro_batches}, rank)) {
            if (pass.kind == PassKind::kForward) most = std::max(most, ++live);
            if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardInput) --live;
          }
          EXPECT_EQ(plan::MicrobatchesInFlight(layout, rank) * stages, most)
              << PipelineShape{schedule, ranks, stages, micro_batches}.ToText() << ", rank " << rank;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlanAgreementTest,
                         ::testing::Values("llama", "mistral", "qwen2", "qwen3", "gpt2", "gptj", "bert", "olmo2",
                                           "granite", "smollm3", "phi3", "gemma2", "gemma3_text", "glm4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace millrace::engine
