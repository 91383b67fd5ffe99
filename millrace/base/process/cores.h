// The number of cores that a process may use, which is also its default number of compute threads.
#pragma once

#include <filesystem>

namespace millrace {

/// Returns the number of cores that this process may use, at least 1: those of its affinity mask, or fewer if the
/// process is in a cgroup (a container) whose quota of processor time is that of fewer cores. Half a core more does not
/// count: one thread too many would stop all threads whenever the cgroup has used its time.
int UsableCores();

/// Returns the number of threads that this process should compute with if `ranks` like it share the machine. It is the
/// first number of OMP_NUM_THREADS. Without that variable it is this process's part of the cores of the machine or
/// container, but no more than UsableCores(). The program that started the ranks may have given each one cores of its
/// own. torchrun's own OMP_NUM_THREADS, which is always 1, does not count.
int ComputeThreads(int ranks = 1);

/// Returns the number of cores whose time the cgroups of this process may use, rounded down; 0: there is no limit.
/// Reads proc/self/cgroup and proc/self/mountinfo below `root`, and there the cpu.max or cpu.cfs_quota_us of the cgroup
/// and of those above it, as far as they are mounted.
int CoresOfQuota(const std::filesystem::path& root = "/");

}  // namespace millrace
