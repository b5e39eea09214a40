# A client that is generated from the OpenAPI document alone, by Debian's OpenAPI::Client, makes and
# deletes one of each kind and then asks every GET; each request is checked before it is sent, and
# each answer against the schema that the document has for it.
#
#   perl openapi_client.pl http://127.0.0.1:8260
use Mojo::Base -strict;
use OpenAPI::Client;

my $url    = shift;
my $client = OpenAPI::Client->new("$url/api/v1/openapi.json", {coerce => 'booleans'});
$client->base_url(Mojo::URL->new($url));
my %called;

# Calls an operation, and returns its answer: a status that is not wanted, or an answer that is not
# as the document says, ends the client.
sub call {
  my ($name, $wanted, $parameters, @body) = @_;
  my $tx = $client->call($name, $parameters // {}, @body);
  my $status = $tx->res->code // 'nothing';
  die "$name: $wanted is wanted, not $status: " . $tx->res->body . "\n" if $status ne $wanted;
  my ($method, $path) = operation($name);
  my $type = $tx->res->headers->content_type // '';
  my $value = $type =~ /json/ ? $tx->res->json : $tx->res->body;
  my @wrong = $client->validator->validate_response([$method, $path, $status], {
    body => sub { {exists => $status != 204, value => $value, content_type => $type =~ s/;.*//r} }
  });
  die "$name: the answer is not as the document says: @wrong\n" if @wrong;
  ++$called{$name};
  return $value;
}

sub operation {
  my $name = shift;
  for my $route ($client->validator->routes->each) {
    return @$route{qw(method path)} if ($route->{operation_id} // '') eq $name;
  }
  die "the document has no $name\n";
}

# The same create twice has the same answer, but for what is counted meanwhile.
sub make {
  my ($name, $parameters, $body, @keys) = @_;
  my $first = call($name, 201, $parameters, json => $body);
  my $again = call($name, 200, $parameters, json => $body);
  for my $key (@keys) {
    die "$name: asked again, $key is another\n" if $first->{$key} ne $again->{$key};
  }
  return $first;
}

# What the client itself refuses: the document says enough to know.
for (['createVolume', {}, {size => 5}], ['createVolume', {}, {name => 'v', colour => 'red'}],
     ['createSchedule', {name => 'v'}, {name => 's', every => '1h', keep => 0}]) {
  my ($name, $parameters, $body) = @$_;
  my $error = $client->call($name, $parameters, json => $body)->error;
  die "$name: the client should refuse it\n" if ($error->{message} // '') ne 'Invalid input';
}

make('createVolume', {}, {name => 'v', size => '8MiB', pool => 'p'}, 'uuid');
my $access = make('addAccess', {name => 'v'}, {initiator => '*'}, 'id');
make('createSnapshots', {name => 'v'}, {name => 's'});
make('createSchedule', {name => 'v'}, {name => 'hourly', every => '1h', keep => 3}, 'name');
make('cloneVolume', {name => 'v'}, {name => 'w'}, 'uuid');
make('cloneSnapshot', {name => 'v', snapshot => 's'}, {name => 'x'}, 'uuid');
make('createPool', {}, {name => 'q', members => ['two'], page => '1MiB'}, 'uuid');
make('addFault', {}, {rule => 'id=f at=drive:d0 p=0 do=fail'}, 'rule');
call('addFault', 409, {}, json => {rule => 'id=f at=drive:d0 p=0 do=hang'});
call('addFaults', 200, {}, json => {rules => ['id=g at=drive:d0 op=unmap do=hold enabled=no']});
call($_, 200, {id => 'g'}, json => {}) for qw(enableFault disableFault releaseFault);
call('healDrive', 200, {}, json => {drive => 'd0'});
call('changeVolume', 200, {name => 'v'}, json => {size => '16MiB'});
call('onlineSnapshot', 200, {name => 'v', snapshot => 's'}, json => {});
call('checkGroup', 200, {}, json => {});
call('exportGroup', 200, {}, json => {});
call('verifyRaidSet', 200, {name => 'a'}, json => {});

# Every GET, with names that lists have given.
my %names = (
  drives => 'd0', members => 'two', pools => 'p', 'raid-sets' => 'a', volumes => 'v',
  targets => call('listTargets', 200)->{targets}[0]{name},
);
for my $route ($client->validator->routes->each) {
  next if $route->{method} ne 'get';
  my ($kind) = $route->{path} =~ m{/api/v1/([a-z-]+)/\{name\}};
  my $name = $kind ? $names{$kind} : '';
  call($route->{operation_id}, 200, {name => $name, snapshot => 's', id => 'f'});
}

call('offlineSnapshot', 200, {name => 'v', snapshot => 's'}, json => {});
call('restoreSnapshot', 200, {name => 'v', snapshot => 's'}, json => {force => Mojo::JSON->true});
call('clearFault', 204, {id => 'f'});
call('clearFaults', 204);
call('deleteSchedule', 204, {name => 'v', schedule => 'hourly'});
call('removeAccess', 204, {name => 'v', id => $access->{id}});
call('deleteVolume', 204, {name => $_, force => 'true'}) for qw(x w);
call('deleteSnapshot', 204, {name => 'v', snapshot => 's'});
call('deleteVolume', 204, {name => 'v', force => 'true'});
call('deletePool', 204, {name => 'q'});
call('showVolume', 404, {name => 'v'});
say scalar(keys %called), ' operations of ', $client->validator->routes->size;
