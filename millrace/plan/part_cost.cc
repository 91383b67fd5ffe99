#include "millrace/plan/part_cost.h"

#include <algorithm>
#include <cmath>

namespace millrace::plan {
namespace {

using Kind = LayerKind;

constexpr std::int64_t kAlign = 16;  // elements: engine::ParameterBuffer starts parameters on 64-byte boundaries
constexpr std::int64_t kChunkLogits = 12 << 20;  // logits that engine/ops/cross_entropy.cc makes at a time, about
constexpr std::int64_t kLeastChunkRows = 64;
// The same on a GPU: bytes, and rows (engine/ops/cuda/cross_entropy.cc).
constexpr std::int64_t kChunkBytesOnGpu = 512 << 20, kLeastChunkRowsOnGpu = 2048;
constexpr std::int64_t kFloat = 4, kIndex = 8;  // bytes
constexpr std::int64_t kNormBlocks = 32;        // engine/ops/norm.cc sums gradients of weights in at most 32 parts
constexpr std::int64_t kNormBlockRows = 32;     // and each part has at least 32 rows
constexpr std::int64_t kPanelElements = 1 << 20, kLeastPanelRows = 64;  // engine/ops/quantized_product.cc
constexpr std::int64_t kQueryBlock = 64;                                // engine/ops/attention.cc
constexpr double kAttentionRate = 0.5;                                  // of the rate of large products

/// Adds up one part's costs, layer by layer.
class PartCounter {
 public:
  PartCounter(const TrainingSetup& setup, const PartDivision& division, const Machine* machine)
      : setup_(setup),
        division_(division),
        tensor_(division.tensor),
        tokens_(setup.micro_tokens()),
        rows_(division.sequence ? tokens_ / tensor_ : tokens_),
        bytes_(setup.element_bytes()),
        selective_(division.recompute == engine::Recompute::kSelective) {
    if (machine == nullptr) return;
    copies_ = setup.bf16 && machine->copies_bf16;
    rate_ = machine->RankRate(setup.bf16, setup.ranks_per_machine);
    bandwidth_ = machine->RankBandwidth(setup.ranks_per_machine);
    operation_ = machine->operation;
    on_gpu_ = machine->accelerators > 0;
  }

  /// The layers of a part, in order.
  void Add(const std::vector<Layer>& part) {
    std::size_t norms = 0;
    for (const Layer& layer : part) {
      if (layer.kind == Kind::kNorm) ++norms;
      if (layer.shares_input) waiting_ += Stream();  // its gradient, until the other layer's comes
    }
    if (division_.is_block) waiting_ += Stream();  // the gradient of the residual stream
    for (const Layer& layer : part) {
      if (layer.kind == Kind::kNorm) --norms;
      if (layer.shares_input) waiting_ -= Stream();
      if (division_.again) held_ = HeldByCaller(layer, norms);
      const std::size_t before = moments_.size();
      Add(layer);
      for (std::size_t i = before; i < moments_.size(); ++i) moments_[i].weight_pass_bytes = cost_.weight_pass_bytes;
    }
  }

  PartCost Finish() {
    for (const BackwardMoment& moment : moments_) {
      cost_.backward_bytes = std::max(cost_.backward_bytes, moment.bytes);
      cost_.deferring_bytes =
          std::max(cost_.deferring_bytes, moment.bytes + cost_.weight_pass_bytes - moment.weight_pass_bytes);
    }
    return cost_;
  }

 private:
  /// A moment of the backward pass.
  struct BackwardMoment {
    std::int64_t bytes = 0;
    std::int64_t weight_pass_bytes = 0;  ///< of the layer that it goes back through, and of those before that layer
  };

  void Add(const Layer& layer) {
    AddParameters(layer);
    AddAdapterParameters(layer);
    if (layer.predicted_only) {
      tokens_ = rows_ = std::llround(setup_.model.predicted * static_cast<double>(setup_.micro_tokens()));
    }
    switch (layer.kind) {
      case Kind::kTokenTable:
        LookUp(layer);
        Leave(layer.in, layer.trains_weight);
        learns_ = layer.trains_weight;
        break;
      case Kind::kTable:
        LookUp(layer);
        learns_ = learns_ || layer.trains_weight;
        break;
      case Kind::kNorm:
        AddNorm(layer);
        break;
      case Kind::kHeadNorm:
        AddHeadNorm(layer, ColumnsOf(layer) / layer.in);
        break;
      case Kind::kAllHeadsNorm:
        AddHeadNorm(layer, 1);
        if (tensor_ == 1) break;
        cost_.forward.all_reduce.Add(1, tokens_ * kFloat);
        cost_.backward.all_reduce.Add(1, tokens_ * kFloat);
        break;
      case Kind::kColumns:
        Enter(layer.in, layer.cheap_input && NeedsInput(layer));
        AddProduct(layer, layer.in, ColumnsOf(layer));
        break;
      case Kind::kRows:
        if (layer.adapters.has_magnitudes && tensor_ > 1) cost_.forward.all_reduce.Add(1, layer.out() * kFloat);
        AddProduct(layer, layer.in / tensor_, layer.out());
        Leave(layer.out());
        break;
      case Kind::kWhole:
        AddProduct(layer, layer.in, layer.out());
        break;
      case Kind::kAttention:
        AddAttention(layer);
        break;
      case Kind::kActivation:
        AddActivation(layer, layer.in / tensor_);
        break;
      case Kind::kGated:
        AddActivation(layer, 2 * layer.in / tensor_);
        break;
      case Kind::kJoinRows:
        if (division_.sequence) cost_.forward.all_gather.Add(1, tokens_ * layer.in * bytes_);
        break;
      case Kind::kTokenHead:
        AddTokenHead(layer);
        break;
    }
  }

  void AddNorm(const Layer& layer) {
    learns_ = learns_ || layer.trains_weight || layer.trains_bias;
    if (!learns_ && !selective_) {  // with selective recomputation, its output is made again for the next layer
      Pass(4 * rows_ * layer.in, false);
      return;
    }
    Keep(rows_ * layer.in * bytes_ + rows_ * kFloat * (layer.bias ? 2 : 1));
    GoBack((IsPreNorm() ? 3 : 2) * rows_ * layer.in * bytes_ +
           std::min(kNormBlocks, (rows_ + kNormBlockRows - 1) / kNormBlockRows) * layer.in * (layer.bias ? 2 : 1) *
               kFloat);
    Pass(4 * rows_ * layer.in);
  }

  /// `rows`: of a token that are normalized, each by itself.
  void AddHeadNorm(const Layer& layer, std::int64_t rows) {
    const std::int64_t all = OwnColumns(), own = ColumnsOf(layer);
    Keep(tokens_ * own * bytes_ + tokens_ * rows * kFloat);
    // Gradients of queries, keys and values together, and of what was taken apart before; a copy of its own.
    GoBack(waiting_ + tokens_ * (2 * all + 2 * own) * bytes_);
    Pass(4 * tokens_ * own);
  }

  /// A product whose matrix is [out, in] on this rank.
  void AddProduct(const Layer& layer, std::int64_t in, std::int64_t out) {
    KeepInput(layer, in);
    KeepScaled(layer, out);
    GoBackThroughProduct(layer, in, out);
    Multiply(in, out, layer.trains_weight);
    MultiplyAdapters(layer);
  }

  void AddActivation(const Layer& layer, std::int64_t inputs) {
    Keep(tokens_ * inputs * bytes_);
    GoBack(waiting_ + tokens_ * (layer.in / tensor_ + inputs) * bytes_);
    Pass(tokens_ * (inputs + layer.in / tensor_));
  }

  /// As engine::TensorRanks::ShareOf.
  std::int64_t Share(std::int64_t all) const {
    const std::int64_t each = (all + tensor_ - 1) / tensor_, first = std::min(all, division_.tensor_rank * each);
    return std::min(all, first + each) - first;
  }

  /// Ranks among which an output of a divided layer is divided.
  std::int64_t RanksOf(const Layer& layer, std::size_t output) const {
    return layer.heads.empty() ? tensor_ : std::min(tensor_, layer.heads[output]);
  }
  /// What this rank has of the outputs of a divided layer.
  std::int64_t ColumnsOf(const Layer& layer) const {
    std::int64_t columns = 0;
    for (std::size_t i = 0; i < layer.outputs.size(); ++i) columns += layer.outputs[i] / RanksOf(layer, i);
    return columns;
  }
  /// This rank's queries, keys and values.
  std::int64_t OwnColumns() const {
    const ModelShape& model = setup_.model;
    return model.queries() / tensor_ + 2 * model.keys() / std::min(tensor_, model.num_kv_heads);
  }
  /// The outputs of a divided layer of which several ranks have the same part, on all ranks together.
  std::int64_t RepeatedColumnsOf(const Layer& layer) const {
    std::int64_t columns = 0;
    for (std::size_t i = 0; i < layer.outputs.size(); ++i) {
      if (RanksOf(layer, i) < tensor_) columns += layer.outputs[i];
    }
    return columns;
  }

  void Declare(std::int64_t elements, bool partial, bool trains) {
    DeclareParts(elements, partial ? elements : 0, trains);
  }
  /// `partial`: elements whose gradients are summed over the tensor ranks.
  void DeclareParts(std::int64_t elements, std::int64_t partial, bool trains) {
    cost_.parameters.push_back({.elements = elements, .trains = trains});
    if (trains) cost_.partial_elements += partial;
  }
  /// A matrix of a block, which may be quantized.
  void DeclareMatrix(std::int64_t elements, std::int64_t partial, bool trains) {
    if (!division_.is_block || setup_.model.block_bits == 0) return DeclareParts(elements, partial, trains);
    cost_.quantized_bytes += std::llround(static_cast<double>(elements) * setup_.model.block_bits / 8);
  }
  /// Mirrors engine::LayerFactory.
  void AddParameters(const Layer& layer) {
    const bool some_tokens = division_.sequence && tensor_ > 1 && !layer.predicted_only;
    switch (layer.kind) {
      case Kind::kAttention:
      case Kind::kActivation:
      case Kind::kGated:
      case Kind::kJoinRows:
        return;
      case Kind::kNorm:
        Declare(layer.in, some_tokens, layer.trains_weight);
        if (layer.bias) Declare(layer.in, some_tokens, layer.trains_bias);
        return;
      case Kind::kHeadNorm:
        return Declare(layer.in, tensor_ > 1, layer.trains_weight);
      case Kind::kAllHeadsNorm:
        return DeclareParts(ColumnsOf(layer), RepeatedColumnsOf(layer), layer.trains_weight);
      case Kind::kTable:
        return Declare(layer.out() * layer.in, some_tokens, layer.trains_weight);
      case Kind::kTokenTable:
      case Kind::kTokenHead: {
        if (!layer.tied || division_.owns_tied_table) {
          Declare(Share(layer.out()) * layer.in, false, layer.trains_weight);
          cost_.parameters.back().is_table = true;
        }
        if (layer.bias) Declare(Share(layer.out()), false, layer.trains_bias);
        return;
      }
      case Kind::kColumns: {
        const std::int64_t weights = layer.in * ColumnsOf(layer), repeated = RepeatedColumnsOf(layer);
        DeclareMatrix(weights, layer.in * repeated, layer.trains_weight);
        if (layer.bias) DeclareParts(ColumnsOf(layer), repeated, layer.trains_bias);
        return;
      }
      case Kind::kRows:
      case Kind::kWhole:
        break;
    }
    const std::int64_t weights = layer.kind == Kind::kWhole ? layer.in * layer.out() : layer.in * layer.out() / tensor_;
    DeclareMatrix(weights, layer.kind == Kind::kWhole && some_tokens ? weights : 0, layer.trains_weight);
    if (layer.bias) Declare(layer.out(), some_tokens, layer.trains_bias);
  }

  /// The inputs and outputs of a module's adapter on this rank, and the outputs of which several ranks have the same
  /// part, on all ranks together.
  struct AdapterSize {
    std::int64_t in = 0, out = 0, repeated = 0;
  };
  AdapterSize SizeOf(const Layer& layer, const AdaptedModule& module) const {
    AdapterSize size{.in = layer.kind == Kind::kRows ? layer.in / tensor_ : layer.in};
    if (layer.kind == Kind::kTokenHead) {
      size.out = Share(layer.out());
      return size;
    }
    for (std::size_t i = module.first_output; i < module.first_output + module.outputs; ++i) {
      const std::int64_t ranks = layer.kind == Kind::kColumns ? RanksOf(layer, i) : 1;
      size.out += layer.outputs[i] / ranks;
      if (layer.kind == Kind::kColumns && ranks < tensor_) size.repeated += layer.outputs[i];
    }
    return size;
  }
  /// Elements a token that come out of a layer's matrices A.
  static std::int64_t InnerOf(const Layer& layer) {
    return layer.adapters.rank * static_cast<std::int64_t>(layer.adapters.modules.size());
  }
  /// Mirrors engine::LayerFactory::MakeAdapters.
  void AddAdapterParameters(const Layer& layer) {
    if (layer.adapters.modules.empty()) return;
    const bool some_tokens = division_.sequence && tensor_ > 1 && !layer.predicted_only && layer.kind == Kind::kWhole;
    const bool divides_outputs = (layer.kind == Kind::kColumns || layer.kind == Kind::kTokenHead) && tensor_ > 1;
    const bool divides_inputs = layer.kind == Kind::kRows && tensor_ > 1;
    Declare(InnerOf(layer) * SizeOf(layer, layer.adapters.modules.front()).in, divides_outputs || some_tokens, true);
    for (const AdaptedModule& module : layer.adapters.modules) {
      const AdapterSize size = SizeOf(layer, module);
      const std::int64_t partial = divides_inputs || some_tokens ? size.out : size.repeated;
      DeclareParts(layer.adapters.rank * size.out, layer.adapters.rank * partial, true);
      if (layer.adapters.has_magnitudes) DeclareParts(size.out, partial, true);
    }
  }

  void Keep(std::int64_t bytes) { cost_.kept_bytes += bytes; }
  /// A moment of the backward pass, when later layers' results are gone. `bytes`: beside what is kept.
  void GoBack(std::int64_t bytes) { moments_.push_back({.bytes = cost_.kept_bytes + held_ + bytes}); }
  /// Bytes of [N, hidden] on this rank.
  std::int64_t Stream() const { return rows_ * setup_.model.hidden_size * bytes_; }
  bool IsPreNorm() const { return division_.is_block && setup_.model.stream > 1; }

  /// What the pass that computes a block again has in hand while it goes back through `layer`, behind which `norms`
  /// norms follow: the block's results, and their gradient. The last norm keeps one of the results, and passes the
  /// gradient on.
  std::int64_t HeldByCaller(const Layer& layer, std::size_t norms) const {
    if (IsPreNorm()) return (norms == 0 ? 1 : 3) * Stream();
    return (layer.kind == Kind::kNorm && norms == 0 ? 1 : 2) * Stream();
  }

  /// A product [N, in] · [in, out]: the gradient of its output comes in, that of its input is made.
  void GoBackThroughProduct(const Layer& layer, std::int64_t in, std::int64_t out) {
    const std::int64_t input = tokens_ * in * bytes_, output = tokens_ * out * bytes_;
    std::int64_t incoming = output;
    if (layer.kind == Kind::kRows && division_.is_block) {  // what waits is this gradient, too
      incoming = (setup_.model.dropouts > 0 ? Stream() : 0) + (division_.sequence ? output : 0);
    }
    // The gradient of a bias is summed in float32, in bfloat16 from a copy. An input that was not kept is made before.
    std::int64_t adding = setup_.bf16 && layer.bias && layer.trains_bias ? tokens_ * out * kFloat : 0;
    if (copies_ && layer.trains_weight) adding = tokens_ * (in + out) * kFloat;
    if (layer.adapters.drops && !layer.adapters.modules.empty()) adding += input;  // without the dropped elements
    if (selective_ && layer.cheap_input && NeedsInput(layer)) {
      adding += input + (layer.kind == Kind::kColumns && division_.sequence ? Stream() : 0);
    }
    std::int64_t leaving = input;
    // Beside it, first what the product needs, then what the adapters do.
    std::int64_t beside = layer.adapters.modules.empty() ? 0 : AddedByAdapters(layer, input);
    if (IsQuantized(layer)) {
      beside = std::max(beside, PanelBytes(in, out) + (setup_.bf16 ? tokens_ * (in + out) * kFloat : 0));
    }
    leaving += beside;
    if (copies_ && !IsQuantized(layer)) leaving += (tokens_ * (in + out) + in * out) * kFloat;
    if (layer.kind == Kind::kColumns && tensor_ > 1) {  // a copy is summed over the ranks
      leaving = std::max(leaving, 2 * input + (division_.sequence ? Stream() : 0) - output);
    }
    if (layer.adapters.has_magnitudes) {  // the scaled gradient; its product with what was scaled, in float32
      incoming += output;
      adding = std::max(adding, tokens_ * out * kFloat);
    }
    GoBack(waiting_ + incoming + std::max(adding, leaving));
  }
  /// What adapters need beside the gradient of the input: their part of it, unless the product adds that itself.
  std::int64_t AddedByAdapters(const Layer& layer, std::int64_t input) const {
    if (AddsUpdateFirst(layer)) return 0;
    if (layer.adapters.drops) return 2 * input;
    return setup_.bf16 ? input : 0;
  }
  bool IsQuantized(const Layer& layer) const {
    return division_.is_block && setup_.model.block_bits > 0 && !layer.trains_weight;
  }
  /// As engine::ops::LinearWeights::adds_update_first.
  bool AddsUpdateFirst(const Layer& layer) const {
    const std::int64_t in = layer.kind == Kind::kRows ? layer.in / tensor_ : layer.in;
    return IsQuantized(layer) && !layer.adapters.drops && !setup_.bf16 && tokens_ > in;
  }
  /// Rows of a quantized matrix that are float32 at once (engine/ops/quantized_product.cc).
  static std::int64_t PanelBytes(std::int64_t in, std::int64_t out) {
    return std::min(out, std::max(kLeastPanelRows, kPanelElements / in)) * in * kFloat;
  }
  bool NeedsInput(const Layer& layer) const { return layer.trains_weight || !layer.adapters.modules.empty(); }
  /// Only the gradients of the weight and of the adapters need the input.
  void KeepInput(const Layer& layer, std::int64_t columns) {
    // Where ranks divide the tokens, each divided layer gathers its own input.
    const bool is_kept = layer.shares_input && !division_.sequence && keeps_shared_input_;
    if (layer.kind == Kind::kColumns) keeps_shared_input_ = NeedsInput(layer);
    if (!NeedsInput(layer)) return;
    cost_.weight_pass_bytes += tokens_ * columns * bytes_;
    if (!AddsUpdateFirst(layer)) Keep(tokens_ * InnerOf(layer) * bytes_);
    if (is_kept || (selective_ && layer.cheap_input)) return;
    Keep(tokens_ * columns * bytes_);
  }

  /// The gradients of magnitudes need the products that these scale, and all passes the rows' norms and factors.
  void KeepScaled(const Layer& layer, std::int64_t out) {
    if (layer.adapters.has_magnitudes) Keep(tokens_ * out * bytes_ + 2 * out * kFloat);
  }

  /// What a layer that is divided by columns exchanges: ops::EnterDividedLayer.
  void Enter(std::int64_t columns, bool cheap_input) {
    if (tensor_ == 1) return;
    const std::int64_t bytes = tokens_ * columns * bytes_;
    if (!division_.sequence) return cost_.backward.all_reduce.Add(1, bytes);
    cost_.forward.all_gather.Add(1, bytes);
    cost_.backward.reduce_scatter.Add(1, bytes);
    if (selective_ && cheap_input) cost_.backward.all_gather.Add(1, bytes);  // it is made again
  }
  /// What a layer that is divided by rows exchanges: ops::LeaveDividedLayer. `goes_back`: a gradient passes through it.
  void Leave(std::int64_t columns, bool goes_back = true) {
    if (tensor_ == 1) return;
    const std::int64_t bytes = tokens_ * columns * bytes_;
    if (!division_.sequence) return cost_.forward.all_reduce.Add(1, bytes);
    cost_.forward.reduce_scatter.Add(1, bytes);
    if (goes_back) cost_.backward.all_gather.Add(1, bytes);
  }

  /// A forward pass takes so long, and one of the reference, too.
  void GoForward(double seconds) {
    cost_.reference_s += seconds;
    cost_.forward_s += seconds;
  }

  // Times. A product takes the time of its arithmetic or, if that is longer, of reading and writing its matrices.
  double ProductSeconds(double rows, double in, double out) const {
    if (rate_ == 0) return 0;
    const double moved = (rows * in + rows * out + in * out) * static_cast<double>(bytes_);
    return std::max(2 * rows * in * out / rate_, moved / bandwidth_) + operation_;
  }
  void Multiply(std::int64_t in, std::int64_t out, bool trains) {
    const double seconds =
        ProductSeconds(static_cast<double>(tokens_), static_cast<double>(in), static_cast<double>(out));
    GoForward(seconds);
    cost_.backward_s += seconds;
    if (!trains) return;
    // The gradient is read and written, in float32.
    const double add = rate_ > 0 ? 2 * static_cast<double>(in * out * kFloat) / bandwidth_ : 0;
    cost_.backward_s += seconds + add;
    cost_.weights_s += seconds + add;
    cost_.weight_pass_bytes += tokens_ * out * bytes_;
  }
  void MultiplyAdapters(const Layer& layer) {
    if (layer.adapters.modules.empty()) return;
    const double reference = cost_.reference_s;
    Multiply(SizeOf(layer, layer.adapters.modules.front()).in, InnerOf(layer), true);
    for (const AdaptedModule& module : layer.adapters.modules) {
      const AdapterSize size = SizeOf(layer, module);
      Multiply(layer.adapters.rank, size.out, true);
      if (!layer.adapters.has_magnitudes) continue;
      // The norms of rows need the sum of the weight and the update; with dropout, the weight multiplies twice.
      cost_.forward_s += ProductSeconds(static_cast<double>(size.out), static_cast<double>(layer.adapters.rank),
                                        static_cast<double>(size.in));
      Pass(2 * tokens_ * size.out);
      if (layer.adapters.drops) Multiply(size.in, size.out, false);
    }
    cost_.reference_s = reference;  // it has no adapters
  }
  /// An operation that is bound by memory: `elements` read and written. Its backward pass reads and writes twice that.
  void Pass(std::int64_t elements, bool goes_back = true) {
    if (rate_ == 0) return;
    const double seconds = static_cast<double>(elements * bytes_) / bandwidth_ + operation_;
    GoForward(seconds);
    if (!goes_back) return;
    cost_.backward_s += 2 * seconds;
    if (selective_) cost_.backward_s += seconds;
  }

  void LookUp(const Layer& layer) {
    if (layer.trains_weight) Keep(kIndex * tokens_);
    Pass(2 * rows_ * layer.in, layer.trains_weight);
  }

  void AddAttention(const Layer& layer) {
    const ModelShape& model = setup_.model;
    const std::int64_t columns = OwnColumns();
    Keep(tokens_ * (columns * bytes_ + model.num_heads / tensor_ * kFloat));
    GoBack(waiting_ + tokens_ * (columns + model.queries() / tensor_) * bytes_);
    Pass(tokens_ * (columns + model.queries() / tensor_));
    Pass(2 * tokens_ * columns);  // rotary positions
    if (rate_ == 0) return;
    // With a window, a block of queries computes its scores with all keys that one of the queries sees.
    const std::int64_t window = layer.window > 0 ? layer.window + kQueryBlock - 1 : 0;
    const double seen = AttendedLength(static_cast<double>(setup_.document_length()), window) / (model.causal ? 2 : 1);
    const std::int64_t queries = tokens_ * model.queries() / tensor_;
    const double forward = 4 * static_cast<double>(queries) * seen / (kAttentionRate * rate_);
    GoForward(forward);
    cost_.backward_s += 2.5 * forward;  // it computes the scores again
  }

  /// Rows whose logits are made at a time.
  std::int64_t ChunkRows(std::int64_t vocab) const {
    if (on_gpu_) return std::max(kLeastChunkRowsOnGpu, kChunkBytesOnGpu / (vocab * bytes_) / 128 * 128);
    return std::max(kLeastChunkRows, kChunkLogits / vocab);
  }

  void AddTokenHead(const Layer& layer) {
    const std::int64_t share = Share(layer.out()), hidden = layer.in;
    const std::int64_t chunk = std::min(tokens_, ChunkRows(layer.out()));
    const std::int64_t chunks = (tokens_ + chunk - 1) / chunk;
    if (layer.predicted_only && tensor_ > 1) {
      cost_.backward.all_reduce.Add(1, tokens_ * hidden * bytes_);
    } else {
      Enter(hidden, /*cheap_input=*/false);
    }
    if (tensor_ > 1) {
      cost_.forward.all_gather.operations += chunks;
      cost_.forward.all_gather.bytes += tensor_ * tokens_ * 3 * kFloat;  // most, sum and label of each row
    }
    // The forward pass makes the gradients of its input and of its weights.
    const std::int64_t columns = (layer.trains_weight ? hidden : 0) + (layer.bias && layer.trains_bias ? 1 : 0);
    Keep(tokens_ * hidden * bytes_ + share * columns * kFloat + kIndex * tokens_);
    if (const std::int64_t inner = InnerOf(layer); inner > 0) {
      // For A its input, and for B, whose gradient the forward pass makes, that of what it multiplies.
      Keep(tokens_ * hidden * bytes_ + tokens_ * inner * bytes_ + share * inner * kFloat);
      MultiplyAdapters(layer);
    }
    // Gradients of pairs are scaled token by token, in float32, and then spread over the tokens that are not learnt.
    GoBack(setup_.compares_pairs ? tokens_ * hidden * (kFloat + bytes_ + (setup_.bf16 ? bytes_ : 0)) : 0);
    // Beside these: its input, which with `sequence` was gathered; a chunk's logits; and as in GoBackThroughProduct().
    const std::int64_t adding = setup_.bf16 && layer.bias && layer.trains_bias ? chunk * share * kFloat : 0;
    const std::int64_t input = tokens_ * hidden * bytes_ + (division_.sequence && !layer.predicted_only ? Stream() : 0);
    cost_.forward_bytes = cost_.kept_bytes + input + chunk * share * bytes_ + adding;
    if (copies_) {  // of its input and of its weights; its input's gradient and the logits are float32
      cost_.forward_bytes = cost_.kept_bytes + input + (chunk * share + (tokens_ + share) * hidden) * kFloat +
                            tokens_ * hidden * (kFloat - bytes_);
    }
    const double product =
        ProductSeconds(static_cast<double>(tokens_), static_cast<double>(hidden), static_cast<double>(share));
    // Logits are written and read; to learn, their gradients, too.
    const double logits = rate_ > 0 ? 2 * static_cast<double>(tokens_ * share * bytes_) / bandwidth_ : 0;
    GoForward(product + logits);
    cost_.forward_s += (layer.trains_weight ? 2 : 1) * product + logits;
  }

  const TrainingSetup& setup_;
  const PartDivision& division_;
  const std::int64_t tensor_;
  std::int64_t tokens_;
  std::int64_t rows_;         ///< of the residual stream on this rank
  const std::int64_t bytes_;  ///< of an element
  const bool selective_;
  bool keeps_shared_input_ = false;  ///< the last layer that is divided by columns keeps its input
  bool learns_ = true;               ///< a gradient reaches what is added next: not behind frozen embeddings
  bool on_gpu_ = false;
  bool copies_ = false;       ///< products are made of float32 copies
  std::int64_t waiting_ = 0;  ///< bytes of gradients that wait while the pass goes back through a layer
  std::int64_t held_ = 0;     ///< bytes, by the pass that computes a block again
  double rate_ = 0, bandwidth_ = 0, operation_ = 0;
  std::vector<BackwardMoment> moments_;
  PartCost cost_;
};

}  // namespace

void Exchanges::Add(const Exchanges& other, std::int64_t times) {
  const auto add = [&](Count& to, const Count& from) {
    to.operations += times * from.operations;
    to.bytes += times * from.bytes;
  };
  add(all_reduce, other.all_reduce);
  add(all_gather, other.all_gather);
  add(reduce_scatter, other.reduce_scatter);
}

PartCost CostOf(const std::vector<Layer>& part, const TrainingSetup& setup, const PartDivision& division,
                const Machine* machine) {
  PartCounter counter(setup, division, machine);
  counter.Add(part);
  return counter.Finish();
}

std::int64_t GroupElements(std::int64_t elements, int parts) {
  const std::int64_t unit = kAlign * parts;
  return (elements + unit - 1) / unit * unit;
}

}  // namespace millrace::plan
