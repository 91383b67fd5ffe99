// Node of CSI: staging mounts a volume once for all pods of the node, and publishing shows it to one pod.
#include <csi.grpc.pb.h>

#include <algorithm>

#include "millrace/csi/mounter/in_flight.h"
#include "millrace/csi/service/requests.h"
#include "millrace/csi/service/services.h"

namespace millrace::csi {
namespace {

namespace pb = ::csi::v1;

bool IsReaderOnly(const pb::VolumeCapability& capability) {
  using Mode = pb::VolumeCapability::AccessMode;
  const auto mode = capability.access_mode().mode();
  return mode == Mode::SINGLE_NODE_READER_ONLY || mode == Mode::MULTI_NODE_READER_ONLY;
}

/// ReadWriteOncePod.
bool IsForOnePod(const pb::VolumeCapability& capability) {
  return capability.access_mode().mode() == pb::VolumeCapability::AccessMode::SINGLE_NODE_SINGLE_WRITER;
}

/// The volume of a staging or a publishing request.
template <class Request>
VolumeUse UseOf(const Request& request) {
  const auto& mount = request.volume_capability().mount();
  return {.volume_id = request.volume_id(),
          .attributes = ToMap(request.volume_context()),
          .mount_options = {mount.mount_flags().begin(), mount.mount_flags().end()},
          .group = mount.volume_mount_group(),
          .read_only = IsReaderOnly(request.volume_capability()),
          .secrets = ToMap(request.secrets())};
}

class NodeService final : public pb::Node::Service {
 public:
  NodeService(std::string node_id, Mounter& mounter, CallLog& log)
      : node_id_(std::move(node_id)), mounter_(mounter), log_(log) {}

  grpc::Status NodeStageVolume(grpc::ServerContext*, const pb::NodeStageVolumeRequest* request,
                               pb::NodeStageVolumeResponse*) override {
    return log_.Run("NodeStageVolume", SubjectOf(*request), /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(!request->staging_target_path().empty(), "staging path"));
      MR_TRY(Require(request->has_volume_capability(), "volume capability"));
      MR_TRY(RequireFileSystem(request->volume_capability()));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->volume_id()));
      const VolumeUse use = UseOf(*request);
      if (MR_TRY(AuthenticationOf(use.attributes)) != Authentication::kDriver) return {};  // each pod gets its own
      MountPlan plan = MR_TRY(PlanMount(use));
      return mounter_.Mount(
          {.volume = use.volume_id, .target = request->staging_target_path(), .plan = std::move(plan)});
    });
  }

  grpc::Status NodeUnstageVolume(grpc::ServerContext*, const pb::NodeUnstageVolumeRequest* request,
                                 pb::NodeUnstageVolumeResponse*) override {
    return log_.Run("NodeUnstageVolume", SubjectOf(*request), /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(!request->staging_target_path().empty(), "staging path"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->volume_id()));
      return mounter_.Unmount(request->staging_target_path(), /*remove_folder=*/false);
    });
  }

  grpc::Status NodePublishVolume(grpc::ServerContext*, const pb::NodePublishVolumeRequest* request,
                                 pb::NodePublishVolumeResponse*) override {
    return log_.Run("NodePublishVolume", SubjectOf(*request), /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(!request->target_path().empty(), "target path"));
      MR_TRY(Require(request->has_volume_capability(), "volume capability"));
      MR_TRY(RequireFileSystem(request->volume_capability()));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->target_path()));
      return Publish(*request);
    });
  }

  grpc::Status NodeUnpublishVolume(grpc::ServerContext*, const pb::NodeUnpublishVolumeRequest* request,
                                   pb::NodeUnpublishVolumeResponse*) override {
    return log_.Run("NodeUnpublishVolume", SubjectOf(*request), /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(!request->target_path().empty(), "target path"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->target_path()));
      return mounter_.Unmount(request->target_path(), /*remove_folder=*/true);
    });
  }

  grpc::Status NodeGetVolumeStats(grpc::ServerContext*, const pb::NodeGetVolumeStatsRequest* request,
                                  pb::NodeGetVolumeStatsResponse* response) override {
    return log_.Run("NodeGetVolumeStats", SubjectOf(*request), /*quiet=*/true, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(!request->volume_path().empty(), "volume path"));
      auto inspected = mounter_.Inspect(request->volume_path());
      if (!inspected && inspected.error().code() == Code::kInvalidArgument) {
        return Fail(inspected.error().WithCode(Code::kNotFound));  // CSI: no volume is there
      }
      const MountState state = MR_TRY(std::move(inspected));
      if (state.total_inodes > 0) {  // else it is not known
        Fill(*response->add_usage(), pb::VolumeUsage::BYTES, state.total_bytes, state.available_bytes,
             state.used_bytes);
        Fill(*response->add_usage(), pb::VolumeUsage::INODES, state.total_inodes, state.available_inodes,
             state.used_inodes);
      }
      response->mutable_volume_condition()->set_abnormal(!state.problem.empty());
      response->mutable_volume_condition()->set_message(state.problem.empty() ? "the volume works" : state.problem);
      return {};
    });
  }

  grpc::Status NodeGetCapabilities(grpc::ServerContext*, const pb::NodeGetCapabilitiesRequest*,
                                   pb::NodeGetCapabilitiesResponse* response) override {
    using Rpc = pb::NodeServiceCapability::RPC;
    for (const auto type : {Rpc::STAGE_UNSTAGE_VOLUME, Rpc::GET_VOLUME_STATS, Rpc::VOLUME_CONDITION,
                            Rpc::SINGLE_NODE_MULTI_WRITER, Rpc::VOLUME_MOUNT_GROUP}) {
      response->add_capabilities()->mutable_rpc()->set_type(type);
    }
    return grpc::Status::OK;
  }

  grpc::Status NodeGetInfo(grpc::ServerContext*, const pb::NodeGetInfoRequest*,
                           pb::NodeGetInfoResponse* response) override {
    response->set_node_id(node_id_);
    return grpc::Status::OK;
  }

 private:
  template <class Request>
  static CallSubject SubjectOf(const Request& request) {
    CallSubject subject{.volume = request.volume_id(), .pod = ""};
    if constexpr (requires { request.volume_context(); }) subject.pod = PodOf(ToMap(request.volume_context()));
    return subject;
  }

  static void Fill(pb::VolumeUsage& usage, pb::VolumeUsage::Unit unit, std::int64_t total, std::int64_t available,
                   std::int64_t used) {
    usage.set_unit(unit);
    usage.set_total(total);
    usage.set_available(available);
    usage.set_used(used);
  }

  Status Publish(const pb::NodePublishVolumeRequest& request) {
    const VolumeUse use = UseOf(request);
    const std::string& staging = request.staging_target_path();
    const bool read_only = request.readonly() || use.read_only;
    const bool brings_keys =
        !use.secrets.empty() || MR_TRY(AuthenticationOf(use.attributes)) != Authentication::kDriver;
    if (staging.empty() || IsEphemeral(use.attributes) || brings_keys) return PublishAlone(request, use);

    MountPlan plan = MR_TRY(PlanMount(use));
    auto staged = mounter_.Inspect(staging);
    if (!staged && staged.error().code() != Code::kNotFound) return Fail(staged.error());
    if (staged && staged->health == MountHealth::kSilent) return Fail(Code::kUnavailable, "{}", staged->problem);
    if (!staged || staged->health == MountHealth::kGone) {
      // Its daemon is gone, perhaps with a mounter that was killed, and kubelet does not stage again.
      MR_TRY(mounter_.Mount({.volume = use.volume_id, .target = staging, .plan = std::move(plan)}));
    } else if (!use.group.empty() && staged->fingerprint != PlanFingerprint(plan)) {
      // The pod's group is not that of the pod for which the volume was staged.
      if (staged->driver_identity) return PublishAlone(request, use);
      return Fail(
          Code::kPreconditionFailed,
          "another pod of this node uses the volume with another fsGroup; with a nodeStageSecretRef all must have "
          "the same");
    }
    return mounter_.Bind({.source = staging,
                          .target = request.target_path(),
                          .read_only = read_only,
                          .exclusive = IsForOnePod(request.volume_capability())});
  }

  /// Gives the pod a mount of its own.
  Status PublishAlone(const pb::NodePublishVolumeRequest& request, VolumeUse use) {
    use.read_only = use.read_only || request.readonly();
    // Kubelet stages every volume but those that pods bring along, whatever the attributes say.
    if (request.staging_target_path().empty()) use.attributes["csi.storage.k8s.io/ephemeral"] = "true";
    MountPlan plan = MR_TRY(PlanMount(use));
    return mounter_.Mount({.volume = use.volume_id,
                           .target = request.target_path(),
                           .plan = std::move(plan),
                           .exclusive = IsForOnePod(request.volume_capability())});
  }

  const std::string node_id_;
  Mounter& mounter_;
  CallLog& log_;
  InFlightTable in_flight_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewNodeService(std::string node_id, Mounter& mounter, CallLog& log) {
  return std::make_unique<NodeService>(std::move(node_id), mounter, log);
}

}  // namespace millrace::csi
