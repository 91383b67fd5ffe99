// Controller of CSI: the provisioner in the words of the protocol.
#include <csi.grpc.pb.h>

#include "millrace/csi/mounter/in_flight.h"
#include "millrace/csi/service/requests.h"
#include "millrace/csi/service/services.h"
#include "millrace/csi/volume/mount_options.h"
#include "millrace/csi/volume/mount_plan.h"

namespace millrace::csi {
namespace {

namespace pb = ::csi::v1;

/// Every access mode is possible: a bucket has many readers and writers.
template <class Capabilities>
Status CheckCapabilities(const Capabilities& capabilities) {
  MR_TRY(Require(!capabilities.empty(), "volume capabilities"));
  for (const pb::VolumeCapability& capability : capabilities) {
    MR_TRY(RequireFileSystem(capability));
    const std::vector<std::string> options = {capability.mount().mount_flags().begin(),
                                              capability.mount().mount_flags().end()};
    MR_TRY(ParseMountOptions(options));  // now, not when the first pod starts
  }
  return {};
}

void FillVolume(const VolumeRecord& mark, pb::Volume& volume) {
  const VolumeRoot root = ParseRootId(mark.id).value_or(VolumeRoot{});
  volume.set_volume_id(mark.id);
  volume.set_capacity_bytes(mark.capacity_bytes);
  auto& context = *volume.mutable_volume_context();
  context[kBucketAttribute] = root.bucket;
  context[kPrefixAttribute] = root.data_prefix();
  context[kProvisionedAttribute] = "true";
  const auto enforce = mark.parameters.find(kEnforceCapacityParameter);
  if (enforce != mark.parameters.end() && enforce->second == "true") {
    context[kEnforceAttribute] = "true";
    context[kCapacityAttribute] = std::to_string(mark.capacity_bytes);
  }
  if (mark.source.empty()) return;
  if (mark.source_kind == RootKind::kSnapshot) {
    volume.mutable_content_source()->mutable_snapshot()->set_snapshot_id(mark.source);
  } else {
    volume.mutable_content_source()->mutable_volume()->set_volume_id(mark.source);
  }
}

void FillSnapshot(const VolumeRecord& mark, pb::Snapshot& snapshot) {
  snapshot.set_snapshot_id(mark.id);
  snapshot.set_source_volume_id(mark.source);
  snapshot.set_size_bytes(mark.capacity_bytes);
  snapshot.mutable_creation_time()->set_seconds(mark.created_unix_seconds);
  snapshot.set_ready_to_use(mark.state == VolumeState::kReady);
}

class ControllerService final : public pb::Controller::Service {
 public:
  ControllerService(Provisioner& provisioner, CallLog& log) : provisioner_(provisioner), log_(log) {}

  grpc::Status CreateVolume(grpc::ServerContext* context, const pb::CreateVolumeRequest* request,
                            pb::CreateVolumeResponse* response) override {
    return log_.Run("CreateVolume", {.volume = request->name(), .pod = ""}, /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->name().empty(), "name"));
      MR_TRY(CheckCapabilities(request->volume_capabilities()));
      VolumeRequest wanted{.name = request->name(),
                           .required_bytes = request->capacity_range().required_bytes(),
                           .limit_bytes = request->capacity_range().limit_bytes(),
                           .parameters = ToMap(request->parameters()),
                           .source = "",
                           .source_kind = RootKind::kVolume,
                           .secrets = ToMap(request->secrets())};
      const pb::VolumeContentSource& source = request->volume_content_source();
      if (source.has_snapshot()) {
        wanted.source = source.snapshot().snapshot_id();
        wanted.source_kind = RootKind::kSnapshot;
      }
      if (source.has_volume()) wanted.source = source.volume().volume_id();
      if (request->has_volume_content_source()) MR_TRY(Require(!wanted.source.empty(), "id of the volume's source"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->name()));
      const VolumeRecord mark = MR_TRY(provisioner_.CreateVolume(wanted, CallOf(*context)));
      FillVolume(mark, *response->mutable_volume());
      return {};
    });
  }

  grpc::Status DeleteVolume(grpc::ServerContext* context, const pb::DeleteVolumeRequest* request,
                            pb::DeleteVolumeResponse*) override {
    return log_.Run("DeleteVolume", {.volume = request->volume_id(), .pod = ""}, /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->volume_id()));
      return provisioner_.DeleteVolume(request->volume_id(), ToMap(request->secrets()), CallOf(*context));
    });
  }

  grpc::Status ValidateVolumeCapabilities(grpc::ServerContext* context,
                                          const pb::ValidateVolumeCapabilitiesRequest* request,
                                          pb::ValidateVolumeCapabilitiesResponse* response) override {
    const CallSubject subject{.volume = request->volume_id(), .pod = ""};
    return log_.Run("ValidateVolumeCapabilities", subject, /*quiet=*/true, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(!request->volume_capabilities().empty(), "volume capabilities"));
      const bool made_by_hand = request->volume_context().contains(kBucketAttribute) &&
                                !request->volume_context().contains(kProvisionedAttribute);
      if (!made_by_hand) {
        const auto found =
            MR_TRY(provisioner_.FindVolume(request->volume_id(), ToMap(request->secrets()), CallOf(*context)));
        if (!found) return Fail(Code::kNotFound, "there is no volume {}", request->volume_id());
      }
      if (const Status fits = CheckCapabilities(request->volume_capabilities()); !fits) {
        response->set_message(fits.error().ToString());
        return {};
      }
      auto& confirmed = *response->mutable_confirmed();
      *confirmed.mutable_volume_context() = request->volume_context();
      *confirmed.mutable_volume_capabilities() = request->volume_capabilities();
      *confirmed.mutable_parameters() = request->parameters();
      return {};
    });
  }

  grpc::Status ListVolumes(grpc::ServerContext* context, const pb::ListVolumesRequest* request,
                           pb::ListVolumesResponse* response) override {
    return log_.Run("ListVolumes", {}, /*quiet=*/true, [&]() -> Status {
      MR_TRY(CheckListing(request->max_entries()));
      const VolumePage page = MR_TRY(
          AsAborted(provisioner_.ListVolumes(request->starting_token(), request->max_entries(), CallOf(*context))));
      for (const VolumeRecord& mark : page.marks) {
        auto& entry = *response->add_entries();
        FillVolume(mark, *entry.mutable_volume());
        entry.mutable_status()->mutable_volume_condition()->set_message("the volume exists");
      }
      response->set_next_token(page.next);
      return {};
    });
  }

  grpc::Status ControllerGetVolume(grpc::ServerContext* context, const pb::ControllerGetVolumeRequest* request,
                                   pb::ControllerGetVolumeResponse* response) override {
    const CallSubject subject{.volume = request->volume_id(), .pod = ""};
    return log_.Run("ControllerGetVolume", subject, /*quiet=*/true, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      const auto found = MR_TRY(provisioner_.FindVolume(request->volume_id(), {}, CallOf(*context)));
      if (!found) return Fail(Code::kNotFound, "there is no volume {}", request->volume_id());
      FillVolume(*found, *response->mutable_volume());
      response->mutable_status()->mutable_volume_condition()->set_message("the volume exists");
      return {};
    });
  }

  grpc::Status GetCapacity(grpc::ServerContext* context, const pb::GetCapacityRequest* request,
                           pb::GetCapacityResponse* response) override {
    return log_.Run("GetCapacity", {}, /*quiet=*/true, [&]() -> Status {
      response->set_available_capacity(
          MR_TRY(provisioner_.AvailableCapacity(ToMap(request->parameters()), CallOf(*context))));
      return {};
    });
  }

  grpc::Status CreateSnapshot(grpc::ServerContext* context, const pb::CreateSnapshotRequest* request,
                              pb::CreateSnapshotResponse* response) override {
    const CallSubject subject{.volume = request->source_volume_id(), .pod = ""};
    return log_.Run("CreateSnapshot", subject, /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->name().empty(), "name"));
      MR_TRY(Require(!request->source_volume_id().empty(), "source volume id"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->name()));
      const VolumeRecord mark = MR_TRY(provisioner_.CreateSnapshot(
          {.name = request->name(), .volume_id = request->source_volume_id(), .secrets = ToMap(request->secrets())},
          CallOf(*context)));
      FillSnapshot(mark, *response->mutable_snapshot());
      return {};
    });
  }

  grpc::Status DeleteSnapshot(grpc::ServerContext* context, const pb::DeleteSnapshotRequest* request,
                              pb::DeleteSnapshotResponse*) override {
    return log_.Run("DeleteSnapshot", {.volume = request->snapshot_id(), .pod = ""}, /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->snapshot_id().empty(), "snapshot id"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->snapshot_id()));
      return provisioner_.DeleteSnapshot(request->snapshot_id(), ToMap(request->secrets()), CallOf(*context));
    });
  }

  grpc::Status ListSnapshots(grpc::ServerContext* context, const pb::ListSnapshotsRequest* request,
                             pb::ListSnapshotsResponse* response) override {
    return log_.Run(
        "ListSnapshots", {.volume = request->source_volume_id(), .pod = ""}, /*quiet=*/true, [&]() -> Status {
          MR_TRY(CheckListing(request->max_entries()));
          const Secrets secrets = ToMap(request->secrets());
          if (!request->snapshot_id().empty()) {
            const auto found = MR_TRY(provisioner_.FindSnapshot(request->snapshot_id(), secrets, CallOf(*context)));
            if (found) FillSnapshot(*found, *response->add_entries()->mutable_snapshot());
            return {};
          }
          const VolumePage page =
              MR_TRY(AsAborted(provisioner_.ListSnapshots(request->source_volume_id(), request->starting_token(),
                                                          request->max_entries(), secrets, CallOf(*context))));
          for (const VolumeRecord& mark : page.marks) FillSnapshot(mark, *response->add_entries()->mutable_snapshot());
          response->set_next_token(page.next);
          return {};
        });
  }

  grpc::Status GetSnapshot(grpc::ServerContext* context, const pb::GetSnapshotRequest* request,
                           pb::GetSnapshotResponse* response) override {
    return log_.Run("GetSnapshot", {.volume = request->snapshot_id(), .pod = ""}, /*quiet=*/true, [&]() -> Status {
      MR_TRY(Require(!request->snapshot_id().empty(), "snapshot id"));
      const auto found =
          MR_TRY(provisioner_.FindSnapshot(request->snapshot_id(), ToMap(request->secrets()), CallOf(*context)));
      if (!found) return Fail(Code::kNotFound, "there is no snapshot {}", request->snapshot_id());
      FillSnapshot(*found, *response->mutable_snapshot());
      return {};
    });
  }

  grpc::Status ControllerExpandVolume(grpc::ServerContext* context, const pb::ControllerExpandVolumeRequest* request,
                                      pb::ControllerExpandVolumeResponse* response) override {
    const CallSubject subject{.volume = request->volume_id(), .pod = ""};
    return log_.Run("ControllerExpandVolume", subject, /*quiet=*/false, [&]() -> Status {
      MR_TRY(Require(!request->volume_id().empty(), "volume id"));
      MR_TRY(Require(request->has_capacity_range(), "capacity range"));
      const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(request->volume_id()));
      const VolumeRecord mark = MR_TRY(provisioner_.ExpandVolume(
          request->volume_id(), request->capacity_range().required_bytes(), request->capacity_range().limit_bytes(),
          ToMap(request->secrets()), CallOf(*context)));
      response->set_capacity_bytes(mark.capacity_bytes != 0 ? mark.capacity_bytes
                                                            : request->capacity_range().required_bytes());
      response->set_node_expansion_required(false);
      return {};
    });
  }

  grpc::Status ControllerGetCapabilities(grpc::ServerContext*, const pb::ControllerGetCapabilitiesRequest*,
                                         pb::ControllerGetCapabilitiesResponse* response) override {
    using Rpc = pb::ControllerServiceCapability::RPC;
    auto add = [&](Rpc::Type type) { response->add_capabilities()->mutable_rpc()->set_type(type); };
    for (const auto type : {Rpc::CREATE_DELETE_VOLUME, Rpc::GET_CAPACITY, Rpc::CREATE_DELETE_SNAPSHOT,
                            Rpc::CLONE_VOLUME, Rpc::EXPAND_VOLUME, Rpc::GET_VOLUME, Rpc::VOLUME_CONDITION,
                            Rpc::SINGLE_NODE_MULTI_WRITER, Rpc::GET_SNAPSHOT}) {
      add(type);
    }
    // A listing needs to know where to look.
    if (provisioner_.lists()) {
      add(Rpc::LIST_VOLUMES);
      add(Rpc::LIST_SNAPSHOTS);
    }
    return grpc::Status::OK;
  }

 private:
  Status CheckListing(std::int32_t most) const {
    if (!provisioner_.lists()) {
      return Fail(Code::kUnsupported, "the driver has no default place to list; start it with --place");
    }
    if (most < 0) return Fail(Code::kInvalidArgument, "max_entries is {}", most);
    return {};
  }
  /// CSI's code for a token that no page gave.
  static Result<VolumePage> AsAborted(Result<VolumePage> page) {
    if (page || page.error().code() != Code::kInvalidArgument) return page;
    return Fail(page.error().WithCode(Code::kBusy));
  }

  Provisioner& provisioner_;
  CallLog& log_;
  InFlightTable in_flight_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewControllerService(Provisioner& provisioner, CallLog& log) {
  return std::make_unique<ControllerService>(provisioner, log);
}

}  // namespace millrace::csi
