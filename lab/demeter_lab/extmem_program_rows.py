# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The real programs of ``docs/extmem-programs.md``: what each is given and what it does."""

from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).parents[1] / "experiments" / "programs"
DATA = r"""
import base64, json, random
chance = random.Random(7)
def write(name, data):
    with open(name, "wb") as out:
        out.write(data)
write("random", chance.randbytes(24 << 20))
write("text", base64.encodebytes(chance.randbytes(20 << 20)))
words = [base64.b32encode(chance.randbytes(5)).decode().lower() for _ in range(40000)]
lines = [" ".join(chance.choices(words, k=9)) for _ in range(70000)]
write("words", "\n".join(lines).encode() + b"\n")
lines[::50] = [line[::-1] for line in lines[::50]]
write("words2", "\n".join(lines).encode() + b"\n")
rows = [{"id": n, "name": chance.choice(words), "x": chance.random()} for n in range(60000)]
write("rows.json", json.dumps(rows).encode())
write("rows.csv", "".join(f"{r['id']},{r['name']},{r['x']}\n" for r in rows).encode())
write("edges", "".join(f"{n} {n + 1 + chance.randrange(50)}\n" for n in range(60000)).encode())
body = "".join(f"int f{n}(int a){{int s=a;for(int i=0;i<a;i++)s+=i*{n}^s;return s;}}\n"
               for n in range(1200))
write("large.c", body.encode())
write("large.cc", b"#include <map>\n#include <regex>\n#include <vector>\n#include <algorithm>\n"
      + "".join(f"int g{n}(std::map<int,std::vector<int>>&m){{auto&v=m[{n}];"
                f"std::sort(v.begin(),v.end());return v.size();}}\n" for n in range(150)).encode())
write("lib.rs", "".join(f"pub fn f{n}(a:u64)->u64{{(0..a).map(|i|i*{n}).sum()}}\n"
      for n in range(1500)).encode())
write("Hash.java", b"import java.util.*;class Hash{public static void main(String[] a){"
      b"Map<Integer,int[]> m=new HashMap<>();long s=0;for(int i=0;i<300000;i++)"
      b"m.put(i*7,new int[]{i,i+1,i+2});for(int[] v:m.values())s+=v[0]*31L+v[2];"
      b"System.out.println(s);}}")
write("hash.go", b"package main\nimport \"fmt\"\nfunc main(){m:=map[int][]int{};"
      b"for i:=0;i<300000;i++{m[i*7]=[]int{i,i+1}};s:=0;for _,v:=range m{s+=v[0]*31+v[1]};"
      b"fmt.Println(s)}\n")
write("cgo.go", b"package main\n// #include <stdlib.h>\nimport \"C\"\n"
      b"import (\"fmt\"; \"net/http\")\nfunc main(){p:=C.malloc(1<<20);C.free(p);"
      b"fmt.Println(http.StatusText(200))}\n")
write("hash.c", b"#include <stdio.h>\n#include <stdlib.h>\nint main(void){"
      b"unsigned long n=1<<21,*t=calloc(n,8),s=0;for(unsigned long i=1;i<n;i++)"
      b"t[i*7919%n]+=i;for(unsigned long i=0;i<n;i++)s=s*31+t[i];"
      b"printf(\"%lu\\n\",s);free(t);}\n")
write("hash.R", b"m <- new.env(); for (i in 1:60000) m[[as.character(i * 7)]] <- c(i, i + 1);"
      b"s <- 0; for (k in ls(m)) s <- s + m[[k]][1]; set.seed(7); x <- sort(runif(2e6));"
      b"cat(s, sprintf('%.17g', sum(x * seq_along(x))), '\\n')\n")
"""

# What compilers make for those who only read it.
PREPARE = """
gcc -O0 -S -o l.s large.c
gcc -O0 -c -o l.o large.c
gcc -O1 -static -o hash-static hash.c
gcc -O1 -fsanitize=address -o hash-asan hash.c
if command -v musl-gcc; then musl-gcc -O1 -o hash-musl hash.c; fi
if [ -e /usr/lib32/crt1.o ]; then gcc -m32 -O1 -o hash-32 hash.c; fi
cp "$(command -v id)" set-user-id
chmod u+s set-user-id
"""


class Program(NamedTuple):
    """A row of the table."""

    name: str
    needs: str
    """What has to be there: programs, or patterns of paths."""
    command: str
    """For ``bash -e -o pipefail -c``; what it writes to standard output is compared."""
    direct: bool = False
    """The words are the run's own program."""
    swap_size: str | None = "2G"


PROGRAMS = tuple(
    Program(*row)
    for row in (
        ("sort", "sort", "sort -S 200M --parallel=1 text"),
        ("sort -R", "sort", "head -n 20000 words | sort -R --random-source=random -S 200M"),
        ("shuf", "shuf", "shuf --random-source=random text"),
        ("tac", "tac", "tac text"),
        ("uniq", "uniq", "sort words | uniq -c"),
        ("comm", "comm", "comm <(sort words) <(sort words2)"),
        ("join", "join", "join -2 2 <(sort -k1,1 edges) <(sort -k2,2 edges)"),
        ("tsort", "tsort", "tsort edges"),
        ("ptx", "ptx", "head -n 8000 words | ptx"),
        ("split", "split", "split -b 1M --filter=sha256sum text"),
        ("factor", "factor", "seq 1000000000000 1000000003000 | factor"),
        ("mawk", "mawk", "mawk '{for(i=1;i<=NF;i++)n[$i FNR%9]++} "
         "END{for(w in n) print n[w], w}' words | sort | sha256sum"),
        ("sed", "sed", "sed -n 'H;${x;s/\\n/,/g;p}' text"),
        ("grep", "grep", "grep -c -E '(a.*z|q[aeiou]+x){2}' words"),
        ("grep -f", "grep", "head -n 30000 words | cut -d' ' -f1 >pat; grep -c -F -f pat words2"),
        ("rg", "rg", "rg -c -e '(a.*z|q[aeiou]+x)' --sort path words words2 text"),
        ("diff", "diff", "diff words words2 || [ $? = 1 ]"),
        ("cmp", "cmp", "cmp -l words words2 || [ $? = 1 ]"),
        ("patch", "patch", "{ diff words words2 >p || [ $? = 1 ]; }; patch -s -o - words p"),
        ("fmt", "fmt", "fmt words"),
        ("xxd", "xxd", "xxd random | sha256sum"),
        ("od", "od", "od -A n -t x1 random | sha256sum"),
        ("dd bs=32M", "dd", "dd if=random bs=32M count=1 status=none | sha256sum"),
        ("bc", "bc", "echo 'scale=800; 4*a(1)' | bc -l"),
        ("jq", "jq", "jq -c 'group_by(.name)|map({n:.[0].name,c:length})' rows.json"),
        ("xz", "xz", "head -c 1000000 words | xz -T1 -6"),
        ("xz -9e", "xz", "head -c 4000000 words | xz -T1 -9e"),
        ("xz -d", "xz", "head -c 2000000 words | xz -T1 -0 | xz -d"),
        ("gzip", "gzip", "gzip -9 -n -c words"),
        ("bzip2", "bzip2", "bzip2 -9 -c words"),
        ("zstd", "zstd", "zstd -q -15 --single-thread -c rows.json"),
        ("lz4", "lz4", "lz4 -q -12 -c words"),
        ("zip", "zip unzip", "zip -q -X z.zip words; unzip -p z.zip"),
        ("tar", "tar", "tar cf - --sort=name --mtime=@0 words text rows.csv"),
        ("cpio", "cpio", "printf 'words\\ntext\\n' | cpio -o --quiet --reproducible"),
        ("openssl", "openssl", "openssl enc -aes-256-ctr -K 00 -iv 00 -in random 2>/dev/null"),
        ("b2sum", "b2sum", "b2sum random text words"),
        ("iconv", "iconv", "iconv -f latin1 -t utf-16 random"),
        ("groff", "groff", "head -n 20000 words | groff -Tascii -"),
        ("git", "git", "git init -q g; cp words words2 g; cd g; git add .; git write-tree"),
        ("git repack", "git", "git init -q h; cp words words2 h; cd h; git add .; "
         "git -c pack.threads=1 repack -adq; git fsck --full; "
         "git count-objects -v | grep -E '^(count|in-pack)'; git write-tree"),
        ("sqlite3", "sqlite3", "sqlite3 :memory: 'create table t(i,n,x)' '.mode csv' "
         "'.import rows.csv t' 'create index k on t(n,x)' "
         "'select n,count(*),sum(i) from t group by n order by n'"),
        ("readelf", "readelf perl", "readelf -a \"$(command -v perl)\""),
        ("gcc", "gcc", "gcc -O2 -S -o - large.c"),
        ("g++", "g++", "g++ -O1 -S -o - large.cc"),
        ("g++, Boost fibers", "g++ usr/include/boost/context/fiber.hpp",
         "g++ -O1 -o f $SCRIPTS/fibers.cc -lboost_context; ./f"),
        ("cpp", "cpp", "cpp -P large.cc"),
        ("as", "as gcc", "as -o l2.o l.s; sha256sum l2.o"),
        ("ld", "ld gcc", "ld -r -o l3.o l.o; sha256sum l3.o"),
        ("ar", "ar gcc", "ar rcD l.a l.o; sha256sum l.a"),
        ("nm", "nm gcc", "nm l.o"),
        ("objdump", "objdump perl", "objdump -d \"$(command -v perl)\""),
        ("strip", "strip git", "cp \"$(command -v git)\" s; strip s; sha256sum s"),
        ("make", "make", "printf 'a:\\n\\t@sort text | sha256sum\\n' >M; make -s -f M"),
        ("rustc", "rustc", "rustc --crate-type lib -C codegen-units=1 --emit=obj -o r.o lib.rs; "
         "sha256sum r.o"),
        ("rustc, deep", "rustc python3", "python3 -c 'print(\"pub fn f(x: u64) -> u64 { x\" + "
         "\" + 1\" * 3000 + \" }\")' >deep.rs; "
         "rustc --crate-type lib -C codegen-units=1 --emit=obj -o d.o deep.rs; sha256sum d.o"),
        ("python3", "python3", "python3 -c 'import json;"
         "print(sum(r[\"x\"] for r in json.load(open(\"rows.json\"))))'"),
        ("python3 dict", "python3", "python3 -c 'm={i*7:[i] for i in range(400000)};"
         "print(sum(v[0]*31 for v in m.values()))'"),
        ("pandas", "data-python", "data-python $SCRIPTS/tables_pandas.py"),
        ("polars", "data-python", "data-python $SCRIPTS/tables_polars.py"),
        ("scikit-learn", "data-python", "data-python $SCRIPTS/clusters.py"),
        ("igraph", "data-python", "data-python $SCRIPTS/graph.py"),
        ("perl", "perl", "perl -ne 'for(split){$n{$_.$.%9}++} "
         "END{print \"$_ $n{$_}\\n\" for sort keys %n}' words | sha256sum"),
        ("R", "R", "R -s -f hash.R"),
        ("node", "node", "node -e 'const m=new Map();for(let i=0;i<400000;i++)m.set(i*7,[i,i+1]);"
         "let s=0;for(const v of m.values())s+=v[0]*31+v[1];console.log(s)'"),
        ("java", "javac", "java -Xmx200m Hash.java"),
        ("java, parallel", "javac", "java -XX:+UseParallelGC -Xmx200m Hash.java"),
        ("java, G1, heap of its choice", "javac", "java -XX:+UseG1GC Hash.java"),
        ("java, the same with the swap of default size", "javac", "java -XX:+UseG1GC Hash.java",
         False, None),
        ("java, ZGC", "javac", "java -XX:+UseZGC -Xmx200m Hash.java"),
        ("tclsh", "tclsh", "echo 'for {set i 0} {$i<200000} {incr i} {set m($i) x$i};"
         "puts [array size m]' | tclsh"),
        ("vim", "vim", "cp words v; vim -es -u NONE -c '%s/a/bb/g' -c 'wq' v; sha256sum v"),
        ("dash", "dash", "dash -c 'x=; for i in $(seq 60000); do x=\"$x$i\"; done; "
         "printf %s \"$x\"' | sha256sum"),
        ("bash", "bash", "bash -c 'for ((i=0;i<120000;i++)); do a[i*3]=x$i; done; "
         "printf \"%s\\n\" \"${a[@]}\"' | sha256sum"),
        ("40 x true", "true", "for i in $(seq 40); do /bin/true; done; echo ok", False, None),
        ("ffmpeg", "ffmpeg", "ffmpeg -v error -f lavfi -i testsrc=size=1280x720:rate=25 -t 3 "
         "-c:v libx264 -threads 1 -flags +bitexact -f md5 -"),
        ("convert", "/usr/bin/convert", "/usr/bin/convert -size 2600x2600 -seed 7 "
         "plasma:red-blue -blur 0x2 -rotate 30 rgb:- | sha256sum"),
        ("mkfs.ext4", "mkfs.ext4", "truncate -s 256M e; mkfs.ext4 -q -U clear "
         "-E lazy_itable_init=0 e; e2fsck -fn e 2>/dev/null | tail -n 1"),
        ("stress-ng", "stress-ng", "stress-ng -q --vm 2 --vm-bytes 96M --vm-ops 4000 --vm-keep "
         "--verify; echo ok"),
        ("fio O_DIRECT", "fio", "fio --name=f --numjobs=4 --thread --direct=1 --rw=randrw --bs=8M "
         "--size=64M --ioengine=psync --mem=mmap --verify=crc32c --minimal >/dev/null; echo ok"),
        ("strace", "strace", "strace -o /dev/null sort text"),
        ("strace -f", "strace", "strace -f -o /dev/null bash -c 'sort words | uniq -c | sort -n'"),
        ("strace, attached", "strace perl",
         "$SCRIPTS/attached.sh strace -f -o /dev/null -p PROCESS"),
        ("gdb, attached", "gdb perl", "$SCRIPTS/attached.sh gdb -nx -q -batch -p PROCESS "
         "-ex 'info threads' -ex bt -ex 'x/4x $sp'"),
        ("chromium, no sandbox", "chromium", "$SCRIPTS/chromium.sh --no-sandbox"),
        ("other users", "runuser su setpriv chroot unshare perl", "$SCRIPTS/users.sh"),
        ("postgres", "/usr/lib/postgresql/*/bin/postgres runuser", "$SCRIPTS/postgres.sh"),
        ("mariadb", "mariadbd mariadb mariadb-install-db", "$SCRIPTS/mariadb.sh"),
        ("redis", "redis-server redis-cli", "$SCRIPTS/redis.sh"),
        ("memcached", "memcached", "$SCRIPTS/memcached.sh"),
        # What cannot be managed runs without, and is named; as the run's own program it is
        # refused.
        ("go run", "go", "GOFLAGS=-mod=mod GOCACHE=$PWD/gc go run hash.go"),
        ("cgo", "go gcc", "GOFLAGS=-mod=mod GOCACHE=$PWD/gc go build -o cgo cgo.go; ./cgo"),
        ("static", "gcc", "./hash-static"),
        ("musl", "musl-gcc", "./hash-musl"),
        ("sanitizer", "gcc", "./hash-asan"),
        ("32-bit", "gcc /usr/lib32/crt1.o", "./hash-32"),
        ("set-user-ID", "runuser", "runuser -u nobody -- ./set-user-id -u"),
        ("env -i", "sort", "env -i /usr/bin/sort words"),
        ("busybox", "busybox", "busybox sort text"),
        ("valgrind", "valgrind", "valgrind -q sort words"),
        ("gdb", "gdb perl", "gdb -nx -q -batch -ex 'info functions' \"$(command -v perl)\" | "
         "sha256sum"),
        ("gdb, runs sort", "gdb", "gdb -nx -q -batch -ex 'run -o o words' "
         "\"$(command -v sort)\" >&2; sha256sum o"),
        ("static, by itself", "gcc", "./hash-static", True),
        ("musl, by itself", "musl-gcc", "./hash-musl", True),
        ("sanitizer, by itself", "gcc", "./hash-asan", True),
        ("32-bit, by itself", "gcc /usr/lib32/crt1.o", "./hash-32", True),
        ("valgrind, by itself", "valgrind", "valgrind -q sort words", True),
        ("gdb, by itself", "gdb", "gdb -nx -q -batch -ex run sort", True),
    )
)  # fmt: skip
