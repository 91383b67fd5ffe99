#include "millrace/train/layout.h"

#include "millrace/base/result.h"

namespace millrace::train {

using engine::MeshAxis;

Result<std::unique_ptr<RankLayout>> RankLayout::Make(engine::Collective& world, const ParallelOptions& options) {
  if (options.tensor < 1 || world.size() % options.tensor != 0) {
    return Fail(Code::kInvalidArgument, "{} ranks are not a multiple of train.parallel.tensor {}", world.size(),
                options.tensor);
  }
  const engine::MeshShape shape{.replica = world.size() / options.tensor, .tensor = options.tensor};
  const engine::Mesh mesh = MR_TRY(engine::Mesh::Make(shape, world.size(), options.placement));
  std::unique_ptr<RankLayout> layout(new RankLayout(world, mesh, options.sequence));
  if (options.tensor == 1) return layout;
  const int rank = world.rank();
  layout->data_ = MR_TRY(world.Split("data", mesh.Group(rank, {MeshAxis::kReplica, MeshAxis::kShard})));
  layout->tensor_ = MR_TRY(world.Split("tensor", mesh.Group(rank, {MeshAxis::kTensor})));
  return layout;
}

}  // namespace millrace::train
