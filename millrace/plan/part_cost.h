// The cost of one part of a model on a rank: of the embedding, a block or the head, for one micro-batch.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "millrace/plan/layout.h"
#include "millrace/plan/machine.h"

namespace millrace::plan {

/// Operations between ranks, by kind, with the bytes of their tensors; of a gather or a scatter, of the whole tensor.
struct Exchanges {
  struct Count {
    std::int64_t operations = 0, bytes = 0;
    void Add(std::int64_t count, std::int64_t each) { operations += count, bytes += count * each; }
  };
  Count all_reduce, all_gather, reduce_scatter;

  void Add(const Exchanges& other, std::int64_t times = 1);
};

/// The division of a part among tensor-parallel ranks.
struct PartDivision {
  int tensor = 1, tensor_rank = 0;
  bool sequence = false;
  engine::Recompute recompute = engine::Recompute::kNone;
  bool is_block = false;         ///< a gradient of the residual stream waits while the branches go back
  bool again = false;            ///< it is run again in the backward pass
  bool owns_tied_table = false;  ///< of the head: it has a copy of the token table, because the table is elsewhere
};

/// Parameters that lie side by side.
struct ParameterRun {
  std::int64_t elements = 0;
  bool trains = true;     ///< false: frozen
  bool is_table = false;  ///< the token table, which a stage at the other end of the model may have, too
};

struct PartCost {
  std::vector<ParameterRun> parameters;  ///< in the order in which the engine declares them
  std::int64_t quantized_bytes = 0;      ///< weights that are no parameters
  std::int64_t partial_elements = 0;     ///< gradients of what several ranks hold: added up after the passes
  std::int64_t kept_bytes = 0;           ///< from the forward to the backward pass
  std::int64_t weight_pass_bytes = 0;    ///< what a pass for weight gradients alone needs of them, and gradients
  std::int64_t forward_bytes = 0;        ///< at most, while a forward pass runs; of a head
  std::int64_t backward_bytes = 0;       ///< at most, while a backward pass runs, with what is still kept
  std::int64_t deferring_bytes = 0;      ///< the same, if the pass puts off the gradients of weights
  Exchanges forward, backward;           ///< along the tensor axis
  // Seconds on one rank, without exchanges. `reference`: a forward pass of the model without its adapters, which makes
  // no gradients. `weights`: of the backward pass, for the gradients of weights.
  double reference_s = 0, forward_s = 0, backward_s = 0, weights_s = 0;
};

/// Returns the cost of a part's layers. `machine` may be null: then no times are given.
PartCost CostOf(const std::vector<Layer>& part, const TrainingSetup& setup, const PartDivision& division,
                const Machine* machine);

/// Returns the elements of a parameter group that is divided into `parts`: engine::ParameterBuffer makes them equal and
/// starts each on a boundary of 64 bytes.
std::int64_t GroupElements(std::int64_t elements, int parts);

}  // namespace millrace::plan
