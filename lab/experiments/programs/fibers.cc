// SPDX-License-Identifier: Apache-2.0 OR MIT
// Fibers of Boost on stacks of malloc and of mmap, which go deep, read, throw and map memory,
// while everything else is written in between.
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace context = boost::context;

static long descend(int frames)
{
	volatile char room[2000];

	room[0] = room[1999] = frames;
	long below = frames ? descend(frames - 1) : 0;
	if (room[0] != static_cast<char>(frames) || room[1999] != static_cast<char>(frames))
		abort();
	return below + 1;
}

static long work(int fiber, size_t stack_bytes)
{
	char line[8192];
	std::vector<int> numbers(100000, fiber);
	long sum = descend(stack_bytes / 2300 - 8) + numbers[fiber];
	FILE *file = fopen("/proc/self/stat", "r");

	if (!file || !fgets(line, sizeof(line), file) || fclose(file))
		abort();
	try {
		throw std::runtime_error("thrown");
	} catch (const std::exception &) {
		sum++;
	}
	return sum;
}

template <class Stack> static long run(size_t stack_bytes)
{
	std::vector<context::fiber> fibers;
	std::vector<char> memory(60 << 20);
	long sum = 0;

	for (int fiber = 0; fiber < 50; fiber++)
		fibers.emplace_back(std::allocator_arg, Stack(stack_bytes),
				    [&sum, fiber, stack_bytes](context::fiber &&caller) {
					    for (int round = 0; round < 3; round++) {
						    sum += work(fiber, stack_bytes);
						    caller = std::move(caller).resume();
					    }
					    return std::move(caller);
				    });
	for (int round = 0; round < 4; round++) {
		for (auto &fiber : fibers)
			fiber = std::move(fiber).resume();
		memset(memory.data(), round, memory.size());
	}
	return sum;
}

int main()
{
	printf("%ld\n", run<context::fixedsize_stack>(256 << 10));
	printf("%ld\n", run<context::protected_fixedsize_stack>(1 << 20));
}
