// Simulates a save on more ranks than a test machine has, with the real planner, the real manifest, and a model of the
// times of store and network. docs/scale.md has its figures.
#pragma once

#include <cstdint>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// A Llama in bfloat16 under AdamW with master weights and two moments in float32: 14 bytes a parameter.
struct ScaleModel {
  std::int64_t layers = 80, hidden = 8192, intermediate = 28'672, key_value = 1024, vocabulary = 32'000;
};
struct ScaleLayout {
  int data = 1, tensor = 1, pipeline = 1;
  bool sharded_optimizer = true;  ///< each data-parallel rank has its run of the optimizer's state, else all have all
  int ranks() const { return data * tensor * pipeline; }
};
/// Assumptions for the model of the times.
struct ScaleSystem {
  double rank_bandwidth = 1e9;       ///< bytes a second from one rank to the store
  double store_bandwidth = 1e12;     ///< of all ranks together
  double store_requests = 3500;      ///< writes a second that one prefix takes
  double request_s = 0.03;           ///< until a small request is answered
  double leader_bandwidth = 1e9;     ///< bytes a second into rank 0 while it gathers
  double hop_s = 50e-6;              ///< of one exchange between two ranks; a broadcast takes log2 of them
  double copy_bandwidth = 5e9;       ///< bytes a second of memory, for the snapshot
  double manifest_bandwidth = 50e6;  ///< bytes a second of manifest that rank 0 checks and writes down
  std::uint64_t part_bytes = 64ull << 20, chunk_bytes = 4ull << 20;
  int parallel_parts = 8;
};

struct ScaleSave {
  int ranks = 0;
  std::uint64_t bytes = 0, least = 0, most = 0;  ///< of all ranks' files, of the smallest and the largest one
  std::uint64_t tensors = 0, slices = 0;
  std::uint64_t requests = 0;  ///< to the store, all ranks together
  std::uint64_t first_reports = 0,
                later_reports = 0;  ///< bytes that rank 0 gathers: in the first save, in those after it
  std::uint64_t manifest = 0;       ///< bytes
  double copy_s = 0;                ///< which hides behind the next passes
  double upload_s = 0;              ///< the slowest rank's, or the store's
  double agree_s = 0;               ///< exchanges and reports, not those of the first save
  double commit_s = 0;              ///< the manifest: put together, checked, put
  double total_s() const { return copy_s + upload_s + agree_s + commit_s; }
};
/// Plans the save with BalanceReplicas for every group of ranks that hold the same, makes the manifest, checks that it
/// covers every element exactly once, and counts. kInvalidArgument where the layout does not divide the model.
Result<ScaleSave> SimulateSave(const ScaleModel& model, const ScaleLayout& layout, const ScaleSystem& system = {});

}  // namespace millrace::checkpoint
