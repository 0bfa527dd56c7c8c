// A stand-in for the kernel's counters.
#pragma once

#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "check.hpp"
#include "perf_counters.hpp"

namespace tierup::test {

// A kernel with counters that each advance by 100 a read, in a group that runs `running` of every 1000 ns.
struct FakeKernel {
  int open_error = 0;          // errno of perf_event_open
  int fail_open_at = 0;        // the how-manieth open fails with it
  int control_error = 0;
  int read_error = 0;
  int interruptions = 0;       // EINTR that many times first
  std::size_t short_by = 0;    // bytes missing from each answer
  std::uint64_t running = 1000;
  std::uint64_t step = 100;

  int opens = 0, next_fd = 40;
  std::uint64_t reads = 0;
  std::map<int, int> leader;   // fd -> its group's fd
  std::set<unsigned long> requests;
  bool misused = false;
};
inline FakeKernel fake;

inline int fail_with(int error) {
  errno = error;
  return -1;
}

inline int fake_open(perf_event_attr* attr, pid_t pid, int cpu, int group_fd, unsigned long flags) {
  const bool leads = group_fd == -1;
  if (attr->size != sizeof(*attr) || !attr->exclude_kernel || attr->disabled != leads) fake.misused = true;
  if (pid != 0 || cpu != -1 || flags != PERF_FLAG_FD_CLOEXEC) fake.misused = true;
  if (!leads && !fake.leader.count(group_fd)) fake.misused = true;
  if (++fake.opens >= fake.fail_open_at && fake.open_error) return fail_with(fake.open_error);
  fake.leader[fake.next_fd] = leads ? fake.next_fd : group_fd;
  return fake.next_fd++;
}

inline int fake_control(int fd, unsigned long request, unsigned long argument) {
  if (!fake.leader.count(fd) || fake.leader[fd] != fd || argument != PERF_IOC_FLAG_GROUP) fake.misused = true;
  if (fake.control_error) return fail_with(fake.control_error);
  fake.requests.insert(request);
  return 0;
}

inline ssize_t fake_read(int fd, void* buffer, std::size_t bytes) {
  if (fake.interruptions > 0) {
    --fake.interruptions;
    return fail_with(EINTR);
  }
  if (fake.read_error) return fail_with(fake.read_error);
  std::uint64_t members = 0;
  for (const auto& [member, group] : fake.leader) members += group == fd;
  if (bytes != (3 + members) * 8) fake.misused = true;
  ++fake.reads;
  std::vector<std::uint64_t> answer{members, fake.reads * 1000, fake.reads * fake.running};
  for (std::uint64_t i = 0; i < members; ++i) answer.push_back((i + 1) * fake.step * fake.reads);
  std::memcpy(buffer, answer.data(), bytes - fake.short_by);
  return static_cast<ssize_t>(bytes - fake.short_by);
}

inline int fake_close(int fd) {
  const bool leads = fake.leader[fd] == fd;
  if (leads && fake.leader.size() > 1) fake.misused = true;  // its members must be gone by then
  if (fake.leader.erase(fd) != 1) fake.misused = true;
  return 0;
}

inline constexpr PerfSystem kFake{fake_open, fake_control, fake_read, fake_close};

inline void expect_clean() {
  CHECK(fake.leader.empty());  // every descriptor was closed, once
  CHECK(!fake.misused);
}

}  // namespace tierup::test
