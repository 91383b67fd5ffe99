// Checks that the options of a run fit its ranks and their devices.
#pragma once

#include "millrace/base/result.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/train/layout.h"
#include "millrace/train/options.h"
#include "millrace/train/ranks/link_check.h"
#include "millrace/train/reporting/heartbeat.h"

namespace millrace::train {

inline engine::Precision PrecisionOf(const Options& options) {
  return {options.precision, options.tf32, options.fp8 != engine::ops::Fp8Scaling::kNone};
}

/// Checks that the options do not contradict each other. Errors: kInvalidArgument; kUnsupported.
Status CheckOptions(const Options& options);

/// Adds to an error of a GPU whose memory is full which keys make the run smaller. Returns other errors as they are.
Error WithAdviceOnMemory(const Error& error, const Options& options);

/// Checks that all ranks compute on devices of the same kind, and that these have what the run needs. Collective over
/// `world`. Errors: kInvalidArgument; kUnsupported; kUnavailable if a rank is lost.
Status CheckDevices(engine::Collective& world, const Options& options);

/// Measures and returns the network between the machines of the ranks if options.check_network says so. Rank 0 logs the
/// figures, and a warning for each slow link; its heartbeat reports to the supervisor machines whose links are all
/// slow. Collective over `world`. Errors: kUnavailable if a rank is lost.
Result<NetworkFigures> CheckNetwork(engine::Collective& world, const Options& options, Heartbeat& heartbeat);

/// Checks that the options allow plain operations, if they ask for them. Errors: kUnsupported.
Status CheckPlain(const RankLayout& layout, const Options& options);

/// Checks that the batch divides among the ranks. Errors: kInvalidArgument.
Status CheckBatch(const RankLayout& layout, const Options& options);

}  // namespace millrace::train
