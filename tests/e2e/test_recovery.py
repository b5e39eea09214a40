"""The daemon killed, stopped and started again."""
import re
import time

MIB = 1 << 20
ROUNDS = 3


def test_kill_under_write_load_keeps_synced_data(t):
    """kill -9 in the middle of writes: what was acknowledged with a flush is there afterwards."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}])
    for round_number in range(ROUNDS):
        commands = []
        for block in range(4000):
            pattern = (block * 7 + round_number * 31) % 255 + 1
            offset = block * 8192
            commands += [f'write -P {pattern} {offset} 8192']
            if block % 50 == 49:
                commands += ['flush', f'read -P {pattern} {offset} 512']
        script = t.path('commands')
        with open(script, 'w', encoding='utf-8') as stream:
            stream.write('\n'.join(commands) + '\n')
        log = f'writer{round_number}.log'
        writer = t.start('bash', '-c', f'exec qemu-io -f raw {daemon.url()} <{script}', log=log)

        def flushed():
            """Blocks that a flush covers: the read after it has answered."""
            with open(t.path(log), encoding='utf-8', errors='replace') as stream:
                return len(re.findall(r'read 512/512', stream.read())) * 50
        t.until(lambda: flushed() >= 300 * (round_number + 1), 'the writer gets on', 60)
        daemon.kill()
        kept = flushed()
        writer.kill()
        writer.wait()
        daemon.start()
        reads = []
        for block in range(kept):
            pattern = (block * 7 + round_number * 31) % 255 + 1
            reads.append(f'read -P {pattern} {block * 8192} 8192')
        done = t.run('qemu-io', '-f', 'raw', daemon.url(), input='\n'.join(reads) + '\n')
        t.check('Pattern verification failed' not in done.stdout, done.stdout[-2000:])
        t.check(done.stdout.count('read 8192/8192') == kept,
                f'{kept} blocks were synced, {done.stdout.count("read 8192/8192")} came back')
        t.say(f'killed after {kept} synced blocks: all there')


def test_sigterm_under_load_ends_with_0(t):
    """SIGTERM while a client writes: the daemon flushes, ends within its bound, loses nothing."""
    t.need('qemu-io')
    # So large that the writes do not come round to the beginning.
    daemon = t.daemon([{'name': 'disk', 'size': '16GiB'}])
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 33 0 4M', daemon.url())
    t.start('qemu-img', 'bench', '-w', '-f', 'raw', '-c', '1000000', '-o', '8388608', '-d', '8',
            daemon.url())
    time.sleep(1)
    code = daemon.terminate()
    t.check(code == 0, f'SIGTERM ended sandbayd with {code}')
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 33 0 4M', daemon.url())


def test_restart_keeps_volumes_made_at_run_time(t):
    """Volumes and access records made through the command line outlive kill -9 and SIGTERM."""
    t.need('qemu-io')
    daemon = t.daemon()
    daemon.sandbay('volume', 'create', 'made', '--size', '32MiB')
    daemon.sandbay('access', 'add', 'made', '--initiator', '*')
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 5 1M 1M', '-c', 'flush', daemon.url('made'))
    uuid = volume(daemon, 'made')['uuid']
    daemon.kill()
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 5 1M 1M', daemon.url('made'))
    daemon.sandbay('volume', 'expand', 'made', '--size', '48MiB')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    daemon.start()
    made = volume(daemon, 'made')
    t.check(made['uuid'] == uuid, f'another UUID: {made}')
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 5 1M 1M', '-c', 'read 47M 1M',
          daemon.url('made'))


def volume(daemon, name):
    rows = daemon.sandbay_json('volume', 'list')
    rows = rows.get('volumes', rows) if isinstance(rows, dict) else rows
    return next(row for row in rows if row['name'] == name)


test_kill_under_write_load_keeps_synced_data.minutes = 1
