// A training job as a plan sees it, and one way of dividing it among ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/config/model_shape.h"
#include "millrace/engine/layout/mesh.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/layout/stage_division.h"

namespace millrace::plan {

/// The training that is planned, and its number of ranks. Plain data.
struct TrainingSetup {
  ModelShape model;
  int ranks = 1, ranks_per_machine = 1;
  std::int64_t global_batch = 8, micro_batch = 1, sequence_length = 256;  ///< in sequences; in tokens
  bool bf16 = false;     ///< weights and activations are bfloat16 or float16, with a float32 master copy of the weights
  int moments = 2;       ///< tensors that the optimizer keeps for each parameter
  int moment_bytes = 4;  ///< of an element of a moment
  bool rounds_weights = false;         ///< there is no master copy (engine::StateStorage)
  bool offloads_state = false;         ///< of accelerators: moments and master copy are in the host's memory
  int snapshots = 0;                   ///< copies of the state in memory that checkpoints are made from
  std::int64_t data_bytes = 64 << 20;  ///< of samples that are read ahead
  /// The sequences are pairs of answers (engine::Preferences): two documents, each of half a sequence. A step begins
  /// with a forward pass of the reference over all of them, which is the model without its adapters.
  bool compares_pairs = false;

  std::int64_t element_bytes() const { return bf16 ? 2 : 4; }
  /// Returns the bytes of an element of the master copy; 0 if there is none.
  std::int64_t master_bytes() const { return bf16 && !rounds_weights ? 4 : 0; }
  std::int64_t micro_tokens() const { return micro_batch * sequence_length; }
  /// Returns the tokens of a document: what attention reaches over.
  std::int64_t document_length() const { return compares_pairs ? sequence_length / 2 : sequence_length; }
};

/// A valid layout of a setup.
struct Layout {
  engine::ParallelOptions options;
  engine::MeshShape shape;
  std::int64_t microbatches = 1;  ///< in a step, of each data-parallel rank

  int data_ranks() const { return shape.replica * shape.shard; }
  /// Returns the stages of all ranks, in order; rank s of the pipeline has the stages s, s + pipeline, …
  std::vector<engine::BlockRange> Stages(const TrainingSetup& setup) const;
};

/// Errors: kInvalidArgument, with the arithmetic, if ranks, batch, heads, tokens or blocks do not divide.
Result<Layout> MakeLayout(const TrainingSetup& setup, const engine::ParallelOptions& options);

/// Ranks that communicate: where they are.
struct RankSpan {
  std::int64_t ranks = 1;
  std::int64_t per_machine = 1;  ///< of the group
  std::int64_t machines() const { return (ranks + per_machine - 1) / per_machine; }
};

/// Returns the span of the ranks along an axis, for most ranks. kReplica stands for all data-parallel ranks together.
RankSpan SpanOf(const Layout& layout, engine::MeshAxis axis, int ranks_per_machine);

}  // namespace millrace::plan
